"""Replicas on nodes of different speed.

Groups are sorted, fastest first, and every replica takes consecutive ones: slow groups share replicas with
their like, get fewer layers where they share with faster ones, and their replica fewer micro-batches; the
slowest may stay out. Within that rule the choice is exact (the same bisection as `replicas`, over a chain of
segments).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.partition import FloatArray, IntArray
from unicron_hpc.planner.replicas import Mix, capacities, finite, knapsack, smallest_time, unpack

#: (layers per stage, through, each) of one replica.
PipeParts = tuple[tuple[int, ...], float, float]
#: Slow groups beyond this many are planned as the slowest speed among them in steps of this ratio.
SPEED_STEP = 1.05
#: Depths tried for replicas that span two speeds; the best of the pure ones.
MIXED_DEPTHS = 12


def _coarse(slowdown: Sequence[float]) -> list[float]:
    """Speeds rounded up to steps of SPEED_STEP over the fastest, so that there are few classes."""
    fastest = slowdown[0]
    if len(set(slowdown)) <= 4:
        return list(slowdown)
    steps = np.ceil(np.log(np.array(slowdown) / fastest) / np.log(SPEED_STEP) - 1e-9)
    return [float(s) for s in fastest * SPEED_STEP**steps]


def fastest_segments(
    slowdown: Sequence[float], depths: Callable[[float], Depths], micro_batches: int
) -> list[list[PipeParts]]:
    """Best set of replicas over groups of the given speeds, fastest first.

    Parameters
    ----------
    slowdown
        Factor of each group, ascending.
    depths
        Makes the table of pure pipelines for a factor.
    micro_batches
        Of the global batch.

    Returns
    -------
    list of list of (layers per stage, through, each)
        One solution for each number of slow classes used (none, the first, ...); empty where nothing fits.
        The replicas of a solution take the groups in order.
    """
    speeds = _coarse(slowdown)
    classes = sorted(set(speeds))
    found = []
    for used in range(1, len(classes) + 1):
        end = sum(s <= classes[used - 1] for s in speeds)
        solution = _chain(speeds[:end], depths, micro_batches)
        if solution is not None:
            found.append(solution)
    return found


class _Segments:
    """Every segment of consecutive groups that may become a replica, past the bulk of the fastest class."""

    def __init__(self, speeds: Sequence[float], depths: Callable[[float], Depths]) -> None:
        self.bulk = sum(s == speeds[0] for s in speeds)
        self.pure = {factor: depths(factor) for factor in set(speeds)}
        self.fast = self.pure[speeds[0]]
        rank = np.argsort(self.fast.each * np.arange(1, len(self.fast.each) + 1), kind="stable") + 1
        likely = {int(p) for p in rank[:MIXED_DEPTHS]} | set(range(1, 9))
        start, end, through, each = [], [], [], []
        self.parts: list[PipeParts] = []
        for stop in range(self.bulk + 1, len(speeds) + 1):
            for depth in range(1, min(len(self.fast.through), stop) + 1):
                inside = tuple(speeds[stop - depth : stop])
                part = self._part(inside, depth in likely)
                if part is None:
                    continue
                start.append(stop - depth)
                end.append(stop)
                through.append(part[1])
                each.append(part[2])
                self.parts.append(part)
        self.start: IntArray = np.array(start, dtype=np.int64)
        self.end: IntArray = np.array(end, dtype=np.int64)
        self.through: FloatArray = np.array(through)
        self.each: FloatArray = np.array(each)

    def _part(self, inside: tuple[float, ...], likely: bool) -> PipeParts | None:
        if inside[0] == inside[-1]:
            table, depth = self.pure[inside[0]], len(inside)
            if not np.isfinite(table.through[depth - 1]):
                return None
            return table.counts(depth), float(table.through[depth - 1]), float(table.each[depth - 1])
        return self.fast.mixed(inside) if likely else None


def _chain(
    speeds: Sequence[float], depths: Callable[[float], Depths], micro_batches: int
) -> list[PipeParts] | None:
    segments = _Segments(speeds, depths)
    fast, bulk, total = segments.fast, segments.bulk, len(speeds)
    count = min(len(fast.through), bulk)
    through = np.concatenate([fast.through[:count], segments.through])
    each = np.concatenate([fast.each[:count], segments.each])
    if not np.isfinite(through).any():
        return None
    by_end = [np.flatnonzero(segments.end == stop) for stop in range(total + 1)]

    def fill(values: IntArray) -> IntArray:
        best = np.zeros(total + 1, dtype=np.int64)
        best[: bulk + 1] = knapsack(values[:count], bulk)
        for stop in range(bulk + 1, total + 1):
            which = by_end[stop]
            best[stop] = best[stop - 1]
            if len(which):
                best[stop] = max(best[stop], (best[segments.start[which]] + values[count:][which]).max())
        return best

    low = float(through.min())
    through, each = finite(through, each)
    high = float((through + (micro_batches - 1) * each).min())
    best_time = smallest_time(
        through, each, micro_batches, lambda values: bool(fill(values)[-1] >= micro_batches), low, high
    )
    values = capacities(through, each, best_time, micro_batches)
    best = fill(values)
    parts: list[PipeParts] = []
    at = int(np.searchsorted(best, micro_batches))
    while at > bulk:
        if best[at] == best[at - 1]:
            at -= 1
            continue
        for k in by_end[at]:
            if best[segments.start[k]] + values[count + k] == best[at]:
                parts.append(segments.parts[k])
                at = int(segments.start[k])
                break
    mix: Mix = unpack(values[:count], best[: at + 1], int(best[at]))
    for depth, number in reversed(mix):
        parts.extend(
            [(fast.counts(depth), float(fast.through[depth - 1]), float(fast.each[depth - 1]))] * number
        )
    parts.reverse()
    while len(parts) > micro_batches:
        # Each can do one micro-batch in time; those that take longest for it are not needed.
        parts.remove(max(parts, key=lambda part: part[1]))
    return parts

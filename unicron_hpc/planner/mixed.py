"""Replicas on nodes of different speed.

Groups are sorted, fastest first, and every replica takes consecutive ones: slow groups share replicas with
their like, get fewer layers where they share with faster ones, and their replica fewer micro-batches; the
slowest may stay out. Inside a replica the slow groups take the stages that suit them best: the first holds
the embedding and most activations, the last the loss head. Within that rule the choice is exact (the same
bisection as `replicas`, over a chain of segments), but for orders of long pipelines.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from unicron_hpc.planner.candidate import Candidate, Pipe
from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.equal import equal_nodes
from unicron_hpc.planner.partition import EPSILON, FloatArray, IntArray
from unicron_hpc.planner.replicas import (
    capacities,
    finite,
    knapsack,
    limited_knapsack,
    smallest_time,
    unpack,
    unpack_limited,
)
from unicron_hpc.planner.scope import Scope

#: Slow groups beyond this many are planned as the slowest speed among them in steps of this ratio.
SPEED_STEP = 1.05
#: Depths tried for replicas that span two speeds; the best of the pure ones.
MIXED_DEPTHS = 12
#: Up to this many groups every limit and number of replicas is tried; each is a search of its own.
SEARCHED_GROUPS = 8
#: Up to this depth every order of the speeds inside a replica is tried; beyond, those that can matter most.
ORDERED_DEPTH = 4


def _coarse(slowdown: Sequence[float]) -> list[float]:
    """Speeds rounded up to steps of SPEED_STEP over the fastest, so that there are few classes."""
    fastest = slowdown[0]
    if len(set(slowdown)) <= 4:
        return list(slowdown)
    steps = np.ceil(np.log(np.array(slowdown) / fastest) / np.log(SPEED_STEP) - 1e-9)
    return [float(s) for s in fastest * SPEED_STEP**steps]


def unequal_nodes(scope: Scope, best: float) -> list[Candidate]:
    """Candidates where nodes differ in speed; at least as fast as leaving the slow ones out.

    One or more for each number of slow classes used (none, the first, ...). Few groups are searched for every
    number of replicas, since each further one makes the gradient sum longer.
    """
    speeds = _coarse(scope.bench.slowdown)
    found: list[Candidate] = []
    for slowest in sorted(set(speeds)):
        end = sum(speed <= slowest for speed in speeds)
        cut = _first(scope, end)
        if slowest == speeds[0]:
            found += equal_nodes(cut, best)
        else:
            found += _every_number(cut, speeds[:end], best)
        best = min([best, *(c.seconds for c in found)])
    return found


def _is_small(scope: Scope) -> bool:
    return len(scope.bench.places) <= SEARCHED_GROUPS


def _first(scope: Scope, count: int) -> Scope:
    """The scope on its first groups only."""
    cut = scope.bench
    places = cut.places[:count]
    kept = replace(cut, places=places, slowdown=cut.slowdown[:count], nodes=len({node for node, _ in places}))
    return replace(scope, bench=kept)


def _every_number(scope: Scope, speeds: Sequence[float], best: float) -> list[Candidate]:
    """The best set of replicas; on few groups, under every limit that may pay and of every number.

    Few parameters on the fullest rank and few replicas make the gradient sum short; few micro-batches of a
    replica leave memory for more layers. What cannot beat `best` is left out.
    """
    free = scope.depths(speeds[0])
    one = scope.depths(speeds[0], flight=1)
    caps, flights = [math.inf], [scope.micro_batches]
    if _is_small(scope):
        caps += sorted({float(q) for q in free.least_parameters if math.isfinite(q)}, reverse=True)
        if not np.array_equal(free.most, one.most):
            flights += range(min(len(free.through), scope.micro_batches) - 1, 0, -1)
    least_sync = float(one.least_parameters.min())
    found: list[Candidate] = []
    for cap, flight in itertools.product(caps, flights):
        table = functools.partial(scope.depths, cap=cap, flight=flight)
        chain = _Chain(speeds, table, scope.micro_batches, flight)
        whole = chain.solve()
        if whole is None:
            continue
        found.append(chain.candidate(scope, whole))
        if not _is_small(scope):
            continue
        best = min(best, found[-1].seconds)
        number = np.arange(1, len(whole))
        # With d replicas one of them has at least 1/d of the micro-batches.
        least = chain.alone(number) + scope.sync(least_sync, number)
        for k in np.argsort(least, kind="stable").tolist():
            if least[k] >= best * (1 - EPSILON):
                break
            some = chain.solve(k + 1)
            if some is not None:
                found.append(chain.candidate(scope, some))
                best = min(best, found[-1].seconds)
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
        self.parts: list[Pipe] = []
        for stop in range(self.bulk + 1, len(speeds) + 1):
            for depth in range(1, min(len(self.fast.through), stop) + 1):
                inside = tuple(speeds[stop - depth : stop])
                for part in self._parts(inside, depth in likely):
                    start.append(stop - depth)
                    end.append(stop)
                    through.append(part.through)
                    each.append(part.each)
                    self.parts.append(part)
        self.start: IntArray = np.array(start, dtype=np.int64)
        self.end: IntArray = np.array(end, dtype=np.int64)
        self.through: FloatArray = np.array(through)
        self.each: FloatArray = np.array(each)

    def _parts(self, inside: tuple[float, ...], likely: bool) -> list[Pipe]:
        if inside[0] == inside[-1]:
            table, depth = self.pure[inside[0]], len(inside)
            return [_pure(table, depth)] if np.isfinite(table.through[depth - 1]) else []
        if not likely:
            return []
        found = []
        for order in _orders(inside):
            cut = self.fast.mixed(tuple(inside[k] for k in order))
            if cut is not None:
                found.append(Pipe(*cut, order))
        # Of two, the one that is better in no respect is no use.
        found.sort(key=lambda pipe: (pipe.through, pipe.each))
        least = itertools.accumulate((pipe.each for pipe in found), min, initial=np.inf)
        return [pipe for pipe, before in zip(found, least, strict=False) if pipe.each < before]


def _orders(inside: tuple[float, ...]) -> Iterator[tuple[int, ...]]:
    """Orders of groups inside a replica, one of those that mean the same; `inside` is ascending."""
    count = len(inside)
    if count <= ORDERED_DEPTH:
        every: Iterator[tuple[int, ...]] = itertools.permutations(range(count))
    else:
        up, inner = tuple(range(count)), tuple(range(2, count))
        # The ends carry more than layers, so the fastest groups may suit them best, or one of them.
        every = iter((up, up[::-1], (0, *inner, 1), (0, *inner[::-1], 1)))
    seen = set()
    for order in every:
        speeds = tuple(inside[k] for k in order)
        if speeds not in seen:
            seen.add(speeds)
            yield order


def _pure(table: Depths, depth: int) -> Pipe:
    return Pipe(table.counts(depth), float(table.through[depth - 1]), float(table.each[depth - 1]))


class _Chain:
    """Sets of replicas over groups of the given speeds, fastest first: which finishes first.

    Parameters
    ----------
    speeds
        Factor of each group, ascending.
    depths
        Makes the table of pure pipelines for a factor.
    micro_batches
        Of the global batch.
    most
        Most micro-batches of one replica.
    """

    def __init__(
        self, speeds: Sequence[float], depths: Callable[[float], Depths], micro_batches: int, most: int
    ) -> None:
        self._segments = segments = _Segments(speeds, depths)
        self._fast, self._bulk, self._total = segments.fast, segments.bulk, len(speeds)
        self._micro_batches, self._most = micro_batches, most
        self._count = min(len(segments.fast.through), segments.bulk)
        through = np.concatenate([segments.fast.through[: self._count], segments.through])
        each = np.concatenate([segments.fast.each[: self._count], segments.each])
        self._fits = bool(np.isfinite(through).any())
        self._through, self._each = finite(through, each)
        self._by_end = [np.flatnonzero(segments.end == stop) for stop in range(self._total + 1)]

    def alone(self, number: IntArray) -> FloatArray:
        """Seconds that no set of so many replicas can beat."""
        share = -(-self._micro_batches // number)
        result: FloatArray = (self._through + (share[:, None] - 1) * self._each).min(axis=1)
        return result

    def solve(self, replicas: int | None = None) -> list[Pipe] | None:
        """The set that finishes first, of at most `replicas`; None where nothing fits.

        They take the groups in order.
        """
        if not self._fits:
            return None
        through, each, wanted = self._through, self._each, self._micro_batches
        most = self._most
        low = float(through.min())
        high = float((through + (most - 1) * each)[through < 1e200].max())

        def enough(values: IntArray) -> bool:
            return bool(self._fill(values, replicas)[-1, -1] >= wanted)

        if not enough(capacities(through, each, high, most)):
            return None
        values = capacities(through, each, smallest_time(through, each, most, enough, low, high), most)
        best = self._fill(values, replicas)
        parts: list[Pipe] = []
        at, row = int(np.searchsorted(best[-1], wanted)), len(best) - 1
        while at > self._bulk:
            if best[row, at] == best[row, at - 1]:
                at -= 1
                continue
            before = row if replicas is None else row - 1
            for k in self._by_end[at]:
                if best[before, self._segments.start[k]] + values[self._count + k] == best[row, at]:
                    parts.append(self._segments.parts[k])
                    at, row = int(self._segments.start[k]), before
                    break
        own, left = values[: self._count], best[: row + 1, : at + 1]
        if replicas is None:
            mix = unpack(own, left[-1], int(left[-1, -1]))
        else:
            mix = unpack_limited(own, left, int(left[-1, -1]))
        for depth, number in reversed(mix):
            parts.extend([_pure(self._fast, depth)] * number)
        parts.reverse()
        while len(parts) > wanted:
            # Each can do one micro-batch in time; those that take longest for it are not needed.
            parts.remove(max(parts, key=lambda part: part.through))
        return parts

    def candidate(self, scope: Scope, pipes: Sequence[Pipe]) -> Candidate:
        """What becomes of `solve`'s answer."""
        return scope.candidate([(pipe, 1) for pipe in pipes], [self._most] * len(pipes))

    def _fill(self, values: IntArray, replicas: int | None) -> IntArray:
        """Most micro-batches on the first w groups, in column w; row d has at most d replicas.

        Without a limit there is one row.
        """
        own, bulk, start = values[: self._count], self._bulk, self._segments.start
        rows = 1 if replicas is None else replicas + 1
        best = np.zeros((rows, self._total + 1), dtype=np.int64)
        if replicas is None:
            best[0, : bulk + 1] = knapsack(own, bulk)
            into, before = best, best
        else:
            best[:, : bulk + 1] = limited_knapsack(own, bulk, replicas)
            into, before = best[1:], best[:-1]
        for stop in range(bulk + 1, self._total + 1):
            which = self._by_end[stop]
            into[:, stop] = into[:, stop - 1]
            if len(which):
                ahead = before[:, start[which]] + values[self._count :][which]
                into[:, stop] = np.maximum(into[:, stop], ahead.max(axis=1))
        return best

"""How many pipelines of which depth: an exact choice of replicas for equal nodes.

A replica of depth p takes p groups and, within T seconds, computes m_p(T) micro-batches. T is enough when
some set of replicas on at most G groups computes all M micro-batches: an unbounded knapsack. The smallest T
is found by bisection over the times at which some m_p changes, so the answer is exact, not approximate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unicron_hpc.planner.partition import EPSILON, FloatArray, IntArray

#: (depth, how many replicas of it), deepest first.
Mix = tuple[tuple[int, int], ...]


def capacities(through: FloatArray, each: FloatArray, seconds: float, micro_batches: int) -> IntArray:
    """Micro-batches that a replica of each depth computes in `seconds`, at most `micro_batches`."""
    with np.errstate(invalid="ignore"):
        count = np.floor((seconds - through) / each + EPSILON) + 1
    fits = through <= seconds * (1 + EPSILON)
    return np.where(fits, np.clip(np.nan_to_num(count), 1, micro_batches), 0).astype(np.int64)


def lower_bound(through: FloatArray, each: FloatArray, groups: int, micro_batches: int) -> float:
    """Seconds that no set of replicas can beat: each depth's groups filled without remainder."""
    depth = np.arange(1, len(through) + 1)
    with np.errstate(invalid="ignore"):
        seconds = through + each * np.maximum(micro_batches * depth / groups - 1, 0)
    seconds = np.where(np.isfinite(through), seconds, np.inf)
    return float(seconds.min()) if len(seconds) else float("inf")


def homogeneous(
    through: FloatArray, each: FloatArray, groups: int, micro_batches: int
) -> tuple[IntArray, FloatArray]:
    """(replicas, seconds) when all replicas have the same depth, by depth - 1; infinite where none fits."""
    replicas = np.minimum(groups // np.arange(1, len(through) + 1), micro_batches)
    share = -(-micro_batches // np.maximum(replicas, 1))
    with np.errstate(invalid="ignore"):
        seconds = through + (share - 1) * each
    return replicas, np.where((replicas >= 1) & np.isfinite(through), seconds, np.inf)


def knapsack(values: IntArray, groups: int) -> IntArray:
    """Most micro-batches on at most w groups, w = 0 .. `groups`; `values[p - 1]` is of depth p."""
    best = np.zeros(groups + 1, dtype=np.int64)
    useful = 0
    for k in range(min(len(values), groups)):
        depth, value = k + 1, int(values[k])
        if value <= useful:  # a shallower replica computes as much
            continue
        useful = value
        rows = -(-(groups + 1) // depth)
        padded = np.full(rows * depth, np.iinfo(np.int64).min // 2)
        padded[: groups + 1] = best
        grid = padded.reshape(rows, depth)
        # Taking the replica c times from w: best[w - c depth] + c value, a running maximum down each column.
        step = value * np.arange(rows)[:, None]
        grid = np.maximum.accumulate(grid - step, axis=0) + step
        best = grid.reshape(-1)[: groups + 1]
    return np.maximum.accumulate(best)


def limited_knapsack(values: IntArray, groups: int, replicas: int) -> IntArray:
    """As `knapsack` with at most d replicas in row d; shape (replicas + 1, groups + 1)."""
    best = np.zeros((replicas + 1, groups + 1), dtype=np.int64)
    depth = np.arange(1, min(len(values), groups) + 1)
    before = np.arange(groups + 1)[:, None] - depth[None, :]
    for d in range(1, replicas + 1):
        taken = np.where(before >= 0, best[d - 1][np.maximum(before, 0)] + values[: len(depth)], 0)
        best[d] = np.maximum(best[d - 1], taken.max(axis=1))
    return best


def unpack(values: IntArray, best: IntArray, wanted: int) -> Mix:
    """Replicas behind `knapsack`'s answer: at least `wanted` micro-batches on the fewest groups."""
    at = int(np.searchsorted(best, wanted))
    mix: dict[int, int] = {}
    while at > 0 and best[at] > 0:
        if best[at] == best[at - 1]:
            at -= 1
            continue
        depth = np.arange(1, min(len(values), at) + 1)
        hits = np.flatnonzero((best[at - depth] + values[depth - 1] == best[at]) & (values[depth - 1] > 0))
        p = int(depth[hits[0]])
        # The same replica again as long as the chain stays on the optimum.
        chain = best[at::-p]
        same = chain[0] - chain == int(values[p - 1]) * np.arange(len(chain))
        count = int(np.argmin(same)) - 1 if not same.all() else len(chain) - 1
        mix[p] = mix.get(p, 0) + count
        at -= p * count
    return tuple(sorted(mix.items(), reverse=True))


def unpack_limited(values: IntArray, best: IntArray, groups: int) -> Mix:
    """Replicas behind the last row of `limited_knapsack`."""
    mix: dict[int, int] = {}
    at, d = groups, best.shape[0] - 1
    while d > 0 and best[d, at] > 0:
        if best[d, at] == best[d - 1, at]:
            d -= 1
            continue
        depth = np.arange(1, min(len(values), at) + 1)
        hits = np.flatnonzero(best[d - 1][at - depth] + values[depth - 1] == best[d, at])
        p = int(depth[hits[0]])
        mix[p] = mix.get(p, 0) + 1
        at, d = at - p, d - 1
    return tuple(sorted(mix.items(), reverse=True))


def smallest_time(
    through: FloatArray,
    each: FloatArray,
    micro_batches: int,
    enough: Callable[[IntArray], bool],
    low: float,
    high: float,
) -> float:
    """Smallest time in [low, high] whose capacities are `enough`; `high` must be.

    Only times through[p] + k each[p] matter, so every step moves to the nearest of them and the search ends
    exactly.
    """
    finite = np.isfinite(through)
    through, each = through[finite], each[finite]

    def below(seconds: float) -> float:
        count = capacities(through, each, seconds, micro_batches)
        times = np.where(count > 0, through + (count - 1) * each, -np.inf)
        return float(times.max())

    def above(seconds: float) -> float:
        count = capacities(through, each, seconds, micro_batches)
        times = np.where(count >= micro_batches, np.inf, through + count * each)
        return float(times.min())

    def full(seconds: float) -> bool:
        every = np.zeros(len(finite), dtype=np.int64)
        every[finite] = capacities(through, each, seconds, micro_batches)
        return enough(every)

    high = below(high)
    first = above(low * (1 - 1e-6))
    low = first if first < high else high
    if full(low):
        return low
    while above(low) < high * (1 - EPSILON):
        middle = below((low + high) / 2)
        if middle <= low * (1 + EPSILON):
            middle = above(low)
        if full(middle):
            high = middle
        else:
            low = middle
    return high


def fastest_mix(
    through: FloatArray, each: FloatArray, groups: int, micro_batches: int, *, replicas: int | None = None
) -> tuple[float, Mix] | None:
    """Set of replicas that finishes `micro_batches` first, exact.

    Parameters
    ----------
    through, each
        Of each depth (`depths.Depths`).
    groups, micro_batches
        What there is and what there is to do.
    replicas
        Most replicas; None for no limit.

    Returns
    -------
    (seconds, mix) or None
        None when no replica fits.
    """
    count = min(len(through), groups)
    through, each = through[:count], each[:count]
    number, seconds = homogeneous(through, each, groups, micro_batches)
    if replicas is not None:
        share = -(-micro_batches // np.maximum(np.minimum(number, replicas), 1))
        with np.errstate(invalid="ignore"):
            seconds = np.where(np.isfinite(seconds), through + (share - 1) * each, np.inf)
    if not len(seconds) or not np.isfinite(seconds).any():
        return None
    low = lower_bound(through, each, groups, micro_batches)

    def enough(values: IntArray) -> bool:
        if replicas is None:
            return bool(knapsack(values, groups)[-1] >= micro_batches)
        return bool(limited_knapsack(values, groups, replicas)[-1, -1] >= micro_batches)

    best = smallest_time(through, each, micro_batches, enough, low, float(seconds.min()))
    values = capacities(through, each, best, micro_batches)
    if replicas is None:
        return best, unpack(values, knapsack(values, groups), micro_batches)
    return best, unpack_limited(values, limited_knapsack(values, groups, replicas), groups)


def shares(through: list[float], each: list[float], micro_batches: int) -> list[int]:
    """Micro-batches of each replica, at least one each, so that the last one to finish is as early as
    possible.

    All get what they can finish in the smallest sufficient time; the surplus is taken from those that finish
    last.
    """
    t, e = np.array(through), np.array(each)
    number = len(t)
    if micro_batches < number:
        raise ValueError(f"{micro_batches} micro-batches for {number} replicas")

    def enough(values: IntArray) -> bool:
        return bool(values.all() and values.sum() >= micro_batches)

    low = float(t.max())
    high = float((t + (micro_batches - 1) * e).max())
    best = smallest_time(t, e, micro_batches, enough, low, high)
    count = capacities(t, e, best, micro_batches)
    surplus = int(count.sum()) - micro_batches
    while surplus > 0:
        finish = np.where(count > 1, t + (count - 1) * e, -np.inf)
        order = np.argsort(-finish, kind="stable")[:surplus]
        order = order[count[order] > 1]
        count[order] -= 1
        surplus -= len(order)
    return [int(c) for c in count]

"""How many pipelines of which depth: an exact choice of replicas for equal nodes.

A replica of depth p takes p groups and, within T seconds, computes m_p(T) micro-batches. T is enough when
some set of replicas on at most G groups computes all M micro-batches: an unbounded knapsack. The smallest T
is found by bisection over the times at which some m_p changes, so the answer is exact, not approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unicron_hpc.planner.partition import EPSILON, FloatArray, IntArray

#: (depth, how many replicas of it), deepest first.
Mix = tuple[tuple[int, int], ...]


def capacities(through: FloatArray, each: FloatArray, seconds: float, micro_batches: int) -> IntArray:
    """Micro-batches that a replica of each depth computes in `seconds`, at most `micro_batches`.

    `through` must be finite (`finite`).
    """
    count = np.floor((seconds - through) / each + EPSILON) + 1
    # Not np.clip: in this innermost step the plain functions are several times faster on small arrays.
    found: IntArray = np.minimum(np.maximum(count, 0), micro_batches).astype(np.int64)
    return found


def finite(through: FloatArray, each: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Depths that do not fit as ones that never finish."""
    fits = np.isfinite(through)
    return np.where(fits, through, 1e200), np.where(fits, each, 1.0)


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
    """Replicas behind `knapsack`'s answer: at least `wanted` micro-batches on the fewest groups.

    On the fewest groups no replica is left without a micro-batch.
    """
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


def unpack_limited(values: IntArray, best: IntArray, wanted: int) -> Mix:
    """As `unpack`, from the last row of `limited_knapsack`."""
    mix: dict[int, int] = {}
    at, d = int(np.searchsorted(best[-1], wanted)), best.shape[0] - 1
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
    exactly. `through` must be finite.
    """

    def count(seconds: float) -> IntArray:
        return capacities(through, each, seconds, micro_batches)

    def below(counts: IntArray) -> float:
        return float(np.where(counts > 0, through + (counts - 1) * each, -np.inf).max())

    def above(counts: IntArray) -> float:
        return float(np.where(counts >= micro_batches, np.inf, through + counts * each).min())

    high = below(count(high))
    low = min(above(count(low * (1 - 1e-6))), high)
    at_low = count(low)
    if enough(at_low):
        return low
    following = above(at_low)
    while following < high * (1 - EPSILON):
        middle = (low + high) / 2
        counts = count(middle)
        middle = below(counts)
        if middle <= low * (1 + EPSILON):
            middle, counts = following, count(following)
        if enough(counts):
            high = middle
        else:
            low, following = middle, above(counts)
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

    through, each = finite(through, each)
    best = smallest_time(through, each, micro_batches, enough, low, float(seconds.min()))
    values = capacities(through, each, best, micro_batches)
    if replicas is None:
        return best, unpack(values, knapsack(values, groups), micro_batches)
    return best, unpack_limited(values, limited_knapsack(values, groups, replicas), micro_batches)


def shares(
    through: Sequence[float], each: Sequence[float], number: Sequence[int], micro_batches: int
) -> list[tuple[int, ...]]:
    """Micro-batches of each replica, at least one each, so that the last to finish is as early as possible.

    All get what they can finish in the smallest sufficient time; the surplus is taken from those that finish
    last.

    Parameters
    ----------
    through, each, number
        Of each kind of replica: seconds, and how many there are.
    micro_batches
        To share out.

    Returns
    -------
    list of tuple of int
        For each kind, the shares of its replicas, largest first.

    Raises
    ------
    ValueError
        When there are more replicas than micro-batches.
    """
    t, e, n = np.array(through), np.array(each), np.array(number)
    if micro_batches < n.sum():
        raise ValueError(f"{micro_batches} micro-batches for {n.sum()} replicas")

    def enough(values: IntArray) -> bool:
        return bool(values.all() and (values * n).sum() >= micro_batches)

    low = float(t.max())
    high = float((t + (micro_batches - 1) * e).max())
    count = capacities(t, e, smallest_time(t, e, micro_batches, enough, low, high), micro_batches)
    surplus = int((count * n).sum()) - micro_batches
    less = np.zeros(len(t), dtype=np.int64)  # replicas of each kind that get one less than `count`
    while surplus > 0:
        finish = np.where(count > 1, t + (count - 1) * e, -np.inf)
        k = int(finish.argmax())
        if surplus >= n[k]:
            count[k] -= 1
            surplus -= int(n[k])
        else:
            less[k], surplus = surplus, 0
    return [
        (int(c),) * int(m - fewer) + (int(c) - 1,) * int(fewer)
        for c, m, fewer in zip(count, n, less, strict=True)
    ]

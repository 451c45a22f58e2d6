"""How many pipelines of which depth: an exact choice of replicas for equal nodes.

A replica of depth p takes p groups and, within T seconds, computes m_p(T) micro-batches. T is enough when
some set of replicas on at most G groups computes all M micro-batches: an unbounded knapsack. The smallest T
is found by bisection over the times at which some m_p changes, so the answer is exact, not approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from unicron_hpc.planner.partition import EPSILON, FloatArray, IntArray

#: (depth, how many replicas of it), deepest first.
Mix = tuple[tuple[int, int], ...]


def capacities(through: FloatArray, each: FloatArray, seconds: float, most: int | IntArray) -> IntArray:
    """Micro-batches that each replica computes in `seconds`, at most `most`.

    `through` must be finite (`finite`).
    """
    count = np.floor((seconds - through) / each + EPSILON) + 1
    # Not np.clip: in this innermost step the plain functions are several times faster on small arrays.
    found: IntArray = np.minimum(np.maximum(count, 0), most).astype(np.int64)
    return found


def finite(through: FloatArray, each: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Depths that do not fit as ones that never finish."""
    fits = np.isfinite(through)
    return np.where(fits, through, 1e200), np.where(fits, each, 1.0)


def lower_bound(through: FloatArray, each: FloatArray, groups: int, micro_batches: int) -> float:
    """Seconds that no set of replicas can beat: each depth's groups filled without remainder."""
    depth = np.arange(1, through.shape[-1] + 1)
    with np.errstate(invalid="ignore"):
        seconds = through + each * np.maximum(micro_batches * depth / groups - 1, 0)
    fits = np.isfinite(through) & (depth <= groups)
    return float(seconds[fits].min()) if fits.any() else math.inf


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
    most: int | IntArray,
    enough: Callable[[IntArray], bool],
    low: float,
    high: float,
) -> float:
    """Smallest time in [low, high] whose capacities are `enough`; `high` must be.

    Only times through[p] + k each[p] matter, so every step moves to the nearest of them and the search ends
    exactly. `through` must be finite.
    """

    def count(seconds: float) -> IntArray:
        return capacities(through, each, seconds, most)

    def below(counts: IntArray) -> float:
        return float(np.where(counts > 0, through + (counts - 1) * each, -np.inf).max())

    def above(counts: IntArray) -> float:
        return float(np.where(counts >= most, np.inf, through + counts * each).min())

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


class Options(msgspec.Struct, frozen=True):
    """Ways to cut a replica of each depth.

    Attributes
    ----------
    through, each
        Seconds to fill and per further micro-batch, shape (ways, depths); infinite where it does not fit.
    most
        Most micro-batches of a replica cut that way, shape (ways, 1): with few of them fewer activations are
        in flight, so that more layers fit.
    """

    through: FloatArray
    each: FloatArray
    most: IntArray


def fastest_mix(
    options: Options, groups: int, micro_batches: int, *, replicas: int | None = None
) -> tuple[float, Mix, IntArray] | None:
    """Set of replicas that finishes `micro_batches` first, exact.

    Parameters
    ----------
    options
        How replicas may be cut.
    groups, micro_batches
        What there is and what there is to do.
    replicas
        Most replicas; None for no limit.

    Returns
    -------
    (seconds, mix, way) or None
        None when the work does not fit; `way[p - 1]` is how replicas of depth p are cut.
    """
    count = min(options.through.shape[1], groups)
    through, each = finite(options.through[:, :count], options.each[:, :count])
    most = np.minimum(options.most, micro_batches)

    def at(seconds: float) -> IntArray:
        return capacities(through, each, seconds, most)

    def enough(counts: IntArray) -> bool:
        values: IntArray = counts.max(axis=0)
        if replicas is None:
            return bool(knapsack(values, groups)[-1] >= micro_batches)
        return bool(limited_knapsack(values, groups, replicas)[-1, -1] >= micro_batches)

    high = _equal_depths(options.through, options.each, most, groups, micro_batches, replicas)
    if not math.isfinite(high):
        fits = options.through[:, :count] < np.inf
        if not fits.any():
            return None
        high = float((through + (most - 1) * each)[fits].max())
        if not enough(at(high)):
            return None
    low = lower_bound(options.through, options.each, groups, micro_batches)
    best = smallest_time(through, each, most, enough, low, high)
    counts = at(best)
    values: IntArray = counts.max(axis=0)
    # The last way is the one without a limit; it is preferred.
    way: IntArray = len(counts) - 1 - counts[::-1].argmax(axis=0)
    if replicas is None:
        return best, unpack(values, knapsack(values, groups), micro_batches), way
    return best, unpack_limited(values, limited_knapsack(values, groups, replicas), micro_batches), way


def _equal_depths(
    through: FloatArray,
    each: FloatArray,
    most: IntArray,
    groups: int,
    micro_batches: int,
    replicas: int | None,
) -> float:
    """Seconds of the best set of equal replicas; infinite where none fits."""
    number = np.minimum(groups // np.arange(1, through.shape[1] + 1), micro_batches)
    if replicas is not None:
        number = np.minimum(number, replicas)
    share = -(-micro_batches // np.maximum(number, 1))
    fits = np.isfinite(through) & (number >= 1) & (share <= most)
    if not fits.any():
        return math.inf
    seconds = np.where(fits, through, np.inf) + (share - 1) * np.where(fits, each, 1.0)
    return float(seconds.min())


def shares(
    through: Sequence[float],
    each: Sequence[float],
    number: Sequence[int],
    micro_batches: int,
    most: Sequence[int] | None = None,
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
    most
        Most micro-batches of a replica of each kind; None for no limit.

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
    limit = np.full(len(t), micro_batches) if most is None else np.minimum(most, micro_batches)
    if micro_batches < n.sum():
        raise ValueError(f"{micro_batches} micro-batches for {n.sum()} replicas")

    def enough(values: IntArray) -> bool:
        return bool(values.all() and (values * n).sum() >= micro_batches)

    low = float(t.max())
    high = float((t + (limit - 1) * e).max())
    count = capacities(t, e, smallest_time(t, e, limit, enough, low, high), limit)
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

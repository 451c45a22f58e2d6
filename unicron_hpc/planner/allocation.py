"""Allocation over tasks: how many nodes each gets, exactly, by Unicron's dynamic programme.

S(i, j) = max over k of S(i - 1, j - k) + G(i, k), with G the reward of giving task i k nodes. The programme
alone costs O(tasks nodes^2). A Lagrangian bound first discards every k that cannot belong to an optimal
allocation (the standard reduction of the multiple-choice knapsack problem, Sinha and Zoltners 1979), which
leaves the answer exact and is what makes it fast; in the worst case nothing is discarded and the plain
programme runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.partition import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]

#: Rewards closer than this, relative to the largest, count as equal, and the tie is broken by moving least.
TIE = 1e-9
#: Margin for rounding where choices are discarded, relative to the largest reward.
ROUNDING = 1e-14

#: Relative precision of the price; a coarser one would only leave more choices to the programme.
PRICE_PRECISION = 1e-13
#: Prices tried around the best one.
PRICES = (0.95, 0.999, 1.0, 1.001, 1.01, 1.1)


def allocate(rewards: FloatArray, capacity: int, moves: IntArray) -> IntArray:
    """Nodes for each task with the largest total reward; of equal ones, the fewest moves.

    Parameters
    ----------
    rewards
        Shape (tasks, nodes + 1): `rewards[t, k]` is the reward of giving task t k nodes; -inf where not
        allowed, and negative values are as good as any.
    capacity
        Nodes to give away; not all need be given.
    moves
        Same shape: nodes that change hands for that choice.

    Returns
    -------
    array of shape (tasks,)
        Nodes of each task.

    Raises
    ------
    PlanError
        When no allocation is allowed.
    """
    tasks = len(rewards)
    if tasks == 0:
        return np.zeros(0, dtype=np.int64)
    rewards, moves = rewards[:, : capacity + 1], moves[:, : capacity + 1]
    allowed = np.isfinite(rewards)
    least = np.where(allowed.any(axis=1), allowed.argmax(axis=1), capacity + 1)
    if int(least.sum()) > capacity:
        raise PlanError(
            f"the tasks need {int(least.sum())} nodes, there are {capacity}",
            hint=f"{int(least.sum())} nodes would do",
        )
    scale = max(float(np.abs(rewards[allowed]).max()), 1e-300)
    # A price on every moved node, so small that all moves together weigh less than a tie.
    tilted = np.where(allowed, rewards - TIE * scale / (4 * (capacity + 1)) * moves, -np.inf)
    keep = _reduced(tilted, capacity, ROUNDING * scale)
    return _programme(tilted, [np.flatnonzero(keep[t]) for t in range(tasks)], capacity)


def _reduced(rewards: FloatArray, capacity: int, margin: float) -> BoolArray:
    """Choices that may belong to an optimal allocation."""
    nodes = np.arange(rewards.shape[1], dtype=np.float64)

    def priced(price: float) -> FloatArray:
        result: FloatArray = rewards - price * nodes
        return result

    # Smallest price at which the tasks together ask for no more than there is.
    low, high = 0.0, 0.0
    if int(_asked(priced(0.0)).sum()) > capacity:
        high = float(np.abs(rewards[np.isfinite(rewards)]).max()) / (capacity + 1)
        while int(_asked(priced(high)).sum()) > capacity:
            low, high = high, 4 * high
        while high - low > PRICE_PRECISION * high:
            middle = (low + high) / 2
            if int(_asked(priced(middle)).sum()) > capacity:
                low = middle
            else:
                high = middle
    lower = _feasible(rewards, _asked(priced(high)), capacity)
    # A choice that fewer nodes match is no use: nodes may stay idle.
    before = np.maximum.accumulate(rewards, axis=1)[:, :-1]
    keep: BoolArray = np.isfinite(rewards)
    keep[:, 1:] &= rewards[:, 1:] > before
    # Every price gives a bound, and each discards other choices than the next.
    for price in sorted({high * factor for factor in PRICES}):
        at_price = priced(price)
        best = at_price.max(axis=1)
        gap = max(float(best.sum()) + price * capacity - lower, 0.0)
        keep &= at_price >= best[:, None] - gap - margin
    return keep


def _asked(priced: FloatArray) -> IntArray:
    """Nodes that each task would take at a price."""
    found: IntArray = priced.argmax(axis=1)
    return found


def _feasible(rewards: FloatArray, start: IntArray, capacity: int) -> float:
    """Reward of a good allocation: the spare nodes go, run by run, where they add most per node."""
    given = start.copy()
    spare = capacity - int(given.sum())
    while spare > 0:
        best = (0.0, 0, 0)
        for t in range(len(given)):
            ahead = rewards[t, given[t] + 1 : given[t] + spare + 1]
            if len(ahead):
                rate = (ahead - rewards[t, given[t]]) / np.arange(1, len(ahead) + 1)
                at = int(rate.argmax())
                best = max(best, (float(rate[at]), t, at + 1))
        if best[2] == 0:
            break
        given[best[1]] += best[2]
        spare -= best[2]
    return float(rewards[np.arange(len(given)), given].sum())


def _programme(rewards: FloatArray, choices: Sequence[IntArray], capacity: int) -> IntArray:
    """The dynamic programme over the choices that are left."""
    value = np.zeros(capacity + 1)
    taken = np.zeros((len(choices), capacity + 1), dtype=np.int32)
    for t, some in enumerate(choices):
        best = np.full(capacity + 1, -np.inf)
        for k in some.tolist():
            offer = value[: capacity + 1 - k] + rewards[t, k]
            here = best[k:]
            better = offer > here
            np.copyto(here, offer, where=better)
            np.copyto(taken[t, k:], k, where=better)
        value = best
    at = int(value.argmax())
    given = np.zeros(len(choices), dtype=np.int64)
    for t in range(len(choices) - 1, -1, -1):
        given[t] = taken[t, at]
        at -= int(given[t])
    return given

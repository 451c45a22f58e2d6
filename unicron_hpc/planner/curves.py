"""Throughput against node count: what each task would make of any number of nodes.

Unicron's T(t, x), the achieved FLOP/s of task t on x nodes under its best setting, for all x at once. Three
layers, each lowering the one before: replicas of equal depth, of any depth, degree, size and number, as
arrays; mixed depths at sampled times, where one knapsack tells the fewest nodes for each; and the full search
where nodes are few. A plan's own layout always comes from the full search.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.cost import model_flops, most_parameters
from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.options import degrees, sizes
from unicron_hpc.planner.partition import FloatArray, IntArray
from unicron_hpc.planner.replicas import capacities, finite, knapsack, lower_bound, unpack
from unicron_hpc.planner.scope import Scope, bench, kinds_of, scope
from unicron_hpc.planner.search import candidates
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Times at which mixed depths are tried, and tensor degrees and sizes that get to try.
SAMPLES, SAMPLED_SCOPES = 48, 2
#: Curves of at most this many nodes come point by point from the full search.
SEARCHED_NODES = 32


class Curve(msgspec.Struct, frozen=True):
    """A task's throughput on 0 .. N nodes.

    Attributes
    ----------
    seconds
        Seconds of an iteration, infinite where the task does not fit. Never rises with nodes.
    flops
        Useful FLOP/s, 0 where the task does not fit.
    state_bytes
        State of the fullest rank (weights and optimizer) in the layout behind each point.
    """

    seconds: FloatArray
    flops: FloatArray
    state_bytes: FloatArray


def throughput(work: TaskWork, most: int, slots: int, *, previous: Layout | None = None) -> Curve:
    """The task's curve for 0 .. `most` nodes of `slots` ranks.

    Parameters
    ----------
    work
        The task.
    most, slots
        Largest number of nodes, and ranks on each.
    previous
        Its running layout, which fixes tensor degree and micro-batch size.
    """
    seconds = np.full(most + 1, np.inf)
    held = np.zeros(most + 1)
    nodes = [NodeSlots(f"node{k}", slots) for k in range(most)]
    won: list[tuple[int, Scope]] = []
    for tensor in degrees(work, nodes, previous) if most else []:
        cut = bench(nodes, tensor)
        if not cut.places:
            continue
        for size in sizes(work, previous):
            part = scope(work, tensor, size, cut)
            won.append((_equal(part, slots // tensor, seconds, held), part))
    won.sort(key=lambda entry: -entry[0])
    for points, part in won[:SAMPLED_SCOPES]:
        if points:
            _mixed(part, slots // part.tensor, seconds, held)
    for count in range(1, most + 1 if most <= SEARCHED_NODES else 1):
        try:
            best = candidates(work, nodes[:count], previous)[0]
        except PlanError:
            continue
        seconds[count], held[count] = best.seconds, best.parameters
    # More nodes never hurt: those that do not help stay idle.
    best_at = np.maximum.accumulate(
        np.where(seconds <= np.minimum.accumulate(seconds), np.arange(most + 1), 0)
    )
    seconds, held = seconds[best_at], held[best_at]
    state = work.parameter_bytes + work.optimizer_bytes
    with np.errstate(divide="ignore"):
        flops = np.where(np.isfinite(seconds), model_flops(work) / seconds, 0.0)
    return Curve(seconds, flops, held * state)


def _equal(part: Scope, per_node: int, seconds: FloatArray, held: FloatArray) -> int:
    """Lower `seconds` (by nodes) wherever replicas of equal depth are faster; returns at how many points."""
    free = part.depths()
    even = part.depths(cap=free.least_parameters)
    return sum(_one_depth(part, depths, per_node, seconds, held) for depths in (free, even))


def _one_depth(part: Scope, depths: Depths, per_node: int, seconds: FloatArray, held: FloatArray) -> int:
    most = len(seconds) - 1
    lowered = 0
    for k in np.flatnonzero(np.isfinite(depths.through)).tolist():
        depth = k + 1
        number = np.arange(1, min(most * per_node // depth, part.micro_batches) + 1)
        # Only numbers of replicas that shorten the largest share can shorten the iteration.
        share = -(-part.micro_batches // number)
        number = number[np.concatenate([[True], share[1:] < share[:-1]])]
        share = -(-part.micro_batches // number)
        parameters = most_parameters(depths.counts(depth), part.work, part.costs)
        time = depths.through[k] + (share - 1) * depths.each[k] + part.sync(parameters, number)
        lowered += _lower(seconds, held, -(-number * depth // per_node), time, parameters)
    return lowered


def _mixed(part: Scope, per_node: int, seconds: FloatArray, held: FloatArray) -> None:
    """Lower `seconds` at the fewest nodes on which mixed depths reach sampled times."""
    depths = part.depths()
    finite_through, finite_each = finite(depths.through, depths.each)
    most = len(seconds) - 1
    least = lower_bound(depths.through, depths.each, most * per_node, part.micro_batches)
    slowest = float(seconds[np.isfinite(seconds)].max())
    for target in np.geomspace(slowest, least, SAMPLES + 1)[1:].tolist():
        values = capacities(finite_through, finite_each, target, part.micro_batches)
        best = knapsack(values, most * per_node)
        if best[-1] < part.micro_batches:
            break
        found = part.candidate(kinds_of(depths, unpack(values, best, part.micro_batches)))
        need = np.array([-(-found.groups // per_node)])
        _lower(seconds, held, need, np.array([found.seconds]), found.parameters)


def _lower(seconds: FloatArray, held: FloatArray, need: IntArray, time: FloatArray, parameters: float) -> int:
    better = np.flatnonzero(time < seconds[need])
    np.minimum.at(seconds, need[better], time[better])
    held[need[better]] = parameters
    return len(better)


def stack(curves: Sequence[Curve]) -> FloatArray:
    """FLOP/s of all tasks, shape (tasks, nodes + 1)."""
    return np.stack([curve.flops for curve in curves])

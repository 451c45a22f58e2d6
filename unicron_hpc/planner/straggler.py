"""Whether a task is better off without a slow node: what makes slowness a reason to take a node out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.cost import predict
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.search import search
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Least part of an iteration that a spare in the node's place must save: state moves for it, and the spare
#: is gone when a node fails.
WORTH = 0.05


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest plan with a node against the fastest without it.

    Attributes
    ----------
    with_seconds
        An iteration of the best plan on the nodes as they are. It gives a slow node fewer layers or
        micro-batches, or no seat.
    without_seconds
        The same without the node, the fastest spare in its place where there is one; infinite where the task
        does not fit then.
    better
        Whether to take the node out: its place is worth `WORTH` more to a spare, or the best plan gives it
        no seat.
    now_seconds
        An iteration of the layout that runs; None where none was given.
    share_anew
        Whether the best plan saves `WORTH` of what runs now: with the node, a transition pays all the same.
    """

    with_seconds: float
    without_seconds: float
    better: bool
    now_seconds: float | None = None
    share_anew: bool = False


def better_without(
    work: TaskWork,
    nodes: Sequence[NodeSlots],
    name: str,
    *,
    spares: Sequence[NodeSlots] = (),
    previous: Layout | None = None,
) -> Verdict:
    """Compare the best plans with and without one of a task's nodes.

    Parameters
    ----------
    work
        The task, with its hardware description as calibrated.
    nodes
        The nodes that it has, each with its measured slowdown.
    name
        The node in question, one of `nodes`.
    spares
        Nodes that could step in, with their slowdowns.
    previous
        The layout that runs now: tensor degree and micro-batch size stay.

    Raises
    ------
    PlanError
        When the task has no such node, or fits not even on all of them.
    """
    if name not in {node.name for node in nodes}:
        raise PlanError(f"no node '{name}' in this task", where=f"task '{work.name}'")
    best = search(work, nodes, previous=previous)
    then = _seconds_without(work, nodes, name, spares, previous)
    running = None
    if previous is not None:
        slowdown = {node.name: node.slowdown for node in nodes}
        running = predict(previous, work, slowdown).iteration_seconds
    return Verdict(
        with_seconds=best.candidate.seconds,
        without_seconds=then,
        better=math.isfinite(then)
        and (name in best.idle_nodes or then < best.candidate.seconds * (1 - WORTH)),
        now_seconds=running,
        share_anew=running is not None and best.candidate.seconds < running * (1 - WORTH),
    )


def _seconds_without(
    work: TaskWork,
    nodes: Sequence[NodeSlots],
    name: str,
    spares: Sequence[NodeSlots],
    previous: Layout | None,
) -> float:
    others = [node for node in nodes if node.name != name]
    others += sorted(spares, key=lambda node: node.slowdown)[:1]
    if len(others) < work.min_nodes:
        return math.inf
    try:
        return search(work, others, previous=previous).candidate.seconds
    except PlanError:
        return math.inf

"""What each task would make of nodes, in the order in which it would have them, slow ones included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.cost import model_flops
from unicron_hpc.planner.curves import Curve, throughput
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.partition import FloatArray
from unicron_hpc.planner.search import candidates
from unicron_hpc.planner.situation import Standing
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Up to this many nodes of different speed are searched, count by count; beyond, a curve is estimated.
SEARCHED_NODES = 16


def standings(
    works: Mapping[str, TaskWork],
    nodes: Sequence[NodeSlots],
    held: Mapping[str, Sequence[NodeSlots]],
    layouts: Mapping[str, Layout],
) -> tuple[Standing, ...]:
    """The tasks as they stand, with their throughput on up to one node more than there are.

    Parameters
    ----------
    works
        Every task by name.
    nodes
        All nodes alive.
    held
        The nodes of each task; what is absent waits.
    layouts
        What runs; a task that is absent waits.
    """
    owner = {node.name: name for name, some in held.items() for node in some}
    # A node may join; nobody knows yet how fast it is.
    joining = NodeSlots("joining", max((node.slots for node in nodes), default=1))
    found = []
    for name, work in works.items():
        # A task keeps its own, then gets idle nodes, the fastest first; what others give is their slowest.
        order = sorted(
            nodes,
            key=lambda n: (
                (0, n.slowdown)
                if owner.get(n.name) == name
                else (1, n.slowdown)
                if n.name not in owner
                else (2, -n.slowdown)
            ),
        )
        mine = tuple(node.name for node in held.get(name, ()))
        # A wished depth says only how a task starts.
        free = replace(work, pipeline=None)
        curve = throughput_on(free, [*order, joining], previous=layouts.get(name))
        found.append(Standing(work=work, nodes=mine, curve=curve, layout=layouts.get(name)))
    return tuple(found)


def throughput_on(work: TaskWork, nodes: Sequence[NodeSlots], *, previous: Layout | None = None) -> Curve:
    """The task's curve on the first 0 .. N of `nodes`.

    Parameters
    ----------
    work
        The task.
    nodes
        In the order in which the task would have them.
    previous
        Its running layout, which fixes tensor degree and micro-batch size.
    """
    slots = max(node.slots for node in nodes)
    alike = throughput(work, len(nodes), slots, previous=previous)
    speeds = np.array([node.slowdown for node in nodes])
    if (speeds == 1.0).all():
        return alike
    seconds, state = alike.seconds.copy(), alike.state_bytes.copy()
    for count in range(int((speeds != 1.0).argmax()) + 1, len(nodes) + 1):
        if len(nodes) <= SEARCHED_NODES:
            try:
                seconds[count] = candidates(work, nodes[:count], previous)[0].seconds
            except PlanError:
                seconds[count] = np.inf
            continue
        seconds[count], at = _estimate(alike, np.sort(speeds[:count]))
        state[count] = alike.state_bytes[at]
    with np.errstate(divide="ignore"):
        flops = np.where(np.isfinite(seconds), model_flops(work) / seconds, 0.0)
    return replace(alike, seconds=seconds, flops=flops, state_bytes=state)


def _estimate(alike: Curve, speeds: FloatArray) -> tuple[float, int]:
    """(seconds on nodes of ascending `speeds`, number of equal nodes that stands for them).

    Work is shared out by speed: the nodes are worth as many of the fastest as their speeds add up to, or as
    many as there are of the slowest.
    """
    worth = int((speeds[0] / speeds).sum() + 1e-9)
    ways = [(float(alike.seconds[worth] * speeds[0]), worth)]
    ways.append((float(alike.seconds[len(speeds)] * speeds[-1]), len(speeds)))
    return min(ways)

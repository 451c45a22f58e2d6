"""How the tasks of a job share the nodes at its start. `unicron plan` and the job both go by this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from unicron_hpc.planner.situation import Situation, check_minimums
from unicron_hpc.planner.standings import standings
from unicron_hpc.planner.table import Event, Planner
from unicron_hpc.planner.work import NodeSlots, TaskWork


def share_at_start(
    works: Mapping[str, TaskWork], nodes: Sequence[NodeSlots], active: int
) -> dict[str, tuple[NodeSlots, ...]]:
    """The first nodes of every task; the others are spares.

    A single task gets all that train. Several share them by Unicron's reward, where each counts for what it
    makes of its nodes under the best setting; who asks for a depth gets at least the nodes of one such
    pipeline.

    Parameters
    ----------
    works
        Every task by name.
    nodes
        Those that are there, the preferred ones first. Slow ones come last whatever the order.
    active
        Most nodes that tasks use together.

    Raises
    ------
    PlanError
        When minimum sizes or memory leave no way.
    """
    chosen = {node.name for node in sorted(nodes, key=lambda node: node.slowdown)[:active]}
    training = [node for node in nodes if node.name in chosen]
    if len(works) == 1:
        return {name: tuple(training) for name in works}
    asking = {name: replace(work, min_nodes=least_nodes(work, training)) for name, work in works.items()}
    now = Situation(
        tasks=standings(asking, training, {}, {}),
        nodes={node.name: node for node in training},
        active=active,
    )
    check_minimums(now.tasks, now.capacity)
    planner = Planner(now)
    event = Event(launched=tuple(sorted(works)))
    counts = {name: task.nodes for name, task in planner.plan(event).tasks.items()}
    return planner.deal(event, counts, ())


def least_nodes(work: TaskWork, nodes: Sequence[NodeSlots]) -> int:
    """Nodes that the task asks for at its start: `min_nodes`, or one pipeline of the depth that it wishes."""
    per_node = max((node.slots for node in nodes), default=1) // (work.tensor or 1)
    return max(work.min_nodes, -(-(work.pipeline or 1) // max(per_node, 1)))


def within_reach(work: TaskWork, nodes: Sequence[NodeSlots]) -> TaskWork:
    """The task with the depth that it wishes where one such pipeline fits on the nodes, else with any.

    A job starts although some of its nodes never came.
    """
    groups = sum(node.slots // (work.tensor or 1) for node in nodes)
    return work if (work.pipeline or 1) <= groups else replace(work, pipeline=None)

"""What a person should know of a first layout: where it departs from what they asked for, or wastes nodes."""

from __future__ import annotations

from collections.abc import Sequence

from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.work import NodeSlots, TaskWork


def notes(work: TaskWork, nodes: Sequence[NodeSlots], layout: Layout) -> tuple[str, ...]:
    """Sentences on a first layout; none where it is what was asked for and every node has a seat.

    Parameters
    ----------
    work
        The task with its wishes.
    nodes
        Those that it has at the start.
    layout
        What it starts with.
    """
    found = []
    depths = [len(replica.stages) for replica in layout.replicas]
    if work.pipeline is not None and any(depth != work.pipeline for depth in depths):
        parts = [f"{depths.count(p)} x {p} stage{'s' if p > 1 else ''}" for p in sorted(set(depths))[::-1]]
        found.append(
            f"task {work.name} starts with {' + '.join(parts)}: with pipeline_model_parallel_size"
            f" {work.pipeline} some of its {sum(node.slots for node in nodes)} ranks would be idle"
            " or wait for slow nodes, and it would be slower"
        )
    idle = [node.name for node in nodes if node.name not in {seat.node for seat in layout.seats}]
    if idle:
        found.append(
            f"task {work.name} leaves {len(idle)} of its {len(nodes)} nodes idle at the start:"
            " no layout is faster with more; as slurm.spares they would do as much"
        )
    return tuple(found)

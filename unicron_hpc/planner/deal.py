"""Which nodes change hands: from how many each task gets to their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.situation import Situation, Standing
from unicron_hpc.planner.work import NodeSlots


def giving_order(held: Sequence[NodeSlots], layout: Layout | None) -> list[NodeSlots]:
    """The nodes of a task, those first that it can give away best.

    A node whose state others hold too comes before one that alone holds something: a node that has left
    cannot send. Among equals the slowest goes first, then the last.
    """
    order = sorted(range(len(held)), key=lambda k: (-held[k].slowdown, -k))
    if layout is None:
        return [held[k] for k in order]
    names = {node.name for node in held}
    # One more entry on each side than layers: the embedding and the loss head have holders of their own.
    cover = np.zeros(layout.num_layers + 2, dtype=np.int64)
    spans: dict[str, list[tuple[int, int]]] = {}
    for replica in layout.replicas:
        for k, stage in enumerate(replica.stages):
            node = layout.seats[stage.ranks[0]].node
            if node in names:
                span = (stage.first + (k > 0), stage.last + 2 + (k == len(replica.stages) - 1))
                spans.setdefault(node, []).append(span)
                cover[span[0] : span[1]] += 1
    free: list[NodeSlots] = []
    bound: list[NodeSlots] = []
    for k in order:
        mine = spans.get(held[k].name, [])
        for first, end in mine:
            cover[first:end] -= 1
        if all(cover[first:end].all() for first, end in mine):
            free.append(held[k])
            continue
        bound.append(held[k])
        for first, end in mine:
            cover[first:end] += 1
    return free + bound


def deal(
    situation: Situation,
    going_on: Sequence[Standing],
    counts: Mapping[str, int],
    *,
    lost: Collection[str] = (),
    joined: Sequence[NodeSlots] = (),
) -> dict[str, tuple[NodeSlots, ...]]:
    """The nodes of every task after an event.

    Each task keeps what it has, as far as its count goes. What is given up, what finished tasks leave, idle
    nodes and new ones go to those that get more, the fastest first, heavier tasks first.

    Parameters
    ----------
    situation
        Before the event.
    going_on
        Tasks that have not finished.
    counts
        Nodes for each of them by name.
    lost, joined
        Nodes that are gone, and new ones.
    """
    gone = frozenset(lost)
    dealt: dict[str, list[NodeSlots]] = {}
    pool = [situation.nodes[name] for name in situation.idle() if name not in gone] + list(joined)
    names = {task.work.name for task in going_on}
    for task in situation.tasks:
        held = [situation.nodes[name] for name in task.nodes if name not in gone]
        if task.work.name not in names:
            pool.extend(held)
            continue
        surplus = len(held) - counts[task.work.name]
        if surplus > 0:
            given = giving_order(held, task.layout)[:surplus]
            pool.extend(given)
            leaving = {node.name for node in given}
            held = [node for node in held if node.name not in leaving]
        dealt[task.work.name] = held
    pool.sort(key=lambda node: node.slowdown)
    taken = 0
    for task in sorted(going_on, key=lambda t: -t.work.weight):
        mine = dealt[task.work.name]
        more = counts[task.work.name] - len(mine)
        mine.extend(pool[taken : taken + more])
        taken += max(more, 0)
    return {name: tuple(held) for name, held in dealt.items()}

"""From the nodes that a task has to the layout that runs on them next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from unicron_hpc.planner import legal
from unicron_hpc.planner.candidate import Candidate, seated
from unicron_hpc.planner.cost import predict
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.movement import HeldUnit, replace_seats
from unicron_hpc.planner.placement import place
from unicron_hpc.planner.scope import bench
from unicron_hpc.planner.search import best_layout, search
from unicron_hpc.planner.start import within_reach
from unicron_hpc.planner.straggler import WORTH
from unicron_hpc.planner.transition import next_layout
from unicron_hpc.planner.work import NodeSlots, TaskWork


class Choice(msgspec.Struct, frozen=True):
    """A layout and the reason in a word, for the journal.

    Attributes
    ----------
    reason
        `start`, `same seats` (only processes are replaced), `spare` or `redistributed`. Slow nodes can turn
        either of the middle two into the last.
    """

    layout: Layout
    reason: str


def choose_layout(
    work: TaskWork,
    previous: Layout | None,
    nodes: Sequence[NodeSlots],
    planned: Collection[str],
    holdings: Mapping[Seat, Sequence[HeldUnit]],
    candidate: Candidate | None = None,
) -> Choice:
    """The next layout of a task, checked against Megatron's rules.

    Parameters
    ----------
    work
        The task, as the planner sees it.
    previous
        Its layout until now; None at the start.
    nodes
        The nodes that it has now.
    planned
        Names of the nodes for which `previous` was chosen; it may have left some of them without a seat.
    holdings
        State that survivors hold, so that little of it moves.
    candidate
        How to run on `nodes`, where that was worked out ahead.

    Raises
    ------
    PlanError
        When no layout fits.
    """
    chosen = _choose(work, previous, nodes, planned, holdings, candidate)
    legal.check(chosen.layout, work)
    return chosen


def _choose(
    work: TaskWork,
    previous: Layout | None,
    nodes: Sequence[NodeSlots],
    planned: Collection[str],
    holdings: Mapping[Seat, Sequence[HeldUnit]],
    candidate: Candidate | None,
) -> Choice:
    if previous is None:
        return Choice(best_layout(within_reach(work, nodes), nodes), "start")
    names = {node.name for node in nodes}
    lost = {seat.node for seat in previous.seats} - names
    if not lost and names <= set(planned) and not _much_slower(previous, work, previous, nodes):
        return Choice(previous, "same seats")
    if lost and len(nodes) >= len(planned):
        seated_before = {seat.node for seat in previous.seats}
        moved = replace_seats(previous, lost, [node for node in nodes if node.name not in seated_before])
        if moved is not None and not _much_slower(moved, work, previous, nodes):
            return Choice(moved, "spare")
    if candidate is not None:
        alone = seated(candidate, bench(nodes, candidate.tensor).places, work.num_layers)
        layout = place(
            alone, previous, nodes, holdings, tied=work.tied, learned_positions=work.learned_positions
        )
        return Choice(layout, "redistributed")
    return Choice(next_layout(work, nodes, previous=previous, holdings=holdings).layout, "redistributed")


def _much_slower(moved: Layout, work: TaskWork, previous: Layout, nodes: Sequence[NodeSlots]) -> bool:
    """Whether another layout saves so much that more state may move: nodes can be slow, spares too."""
    slowdown = {node.name: node.slowdown for node in nodes}
    if len({slowdown[seat.node] for seat in moved.seats}) == 1:
        return False
    best = search(work, nodes, previous=previous).candidate.seconds
    return best < predict(moved, work, slowdown).iteration_seconds * (1 - WORTH)

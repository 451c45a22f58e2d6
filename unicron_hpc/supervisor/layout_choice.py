"""From the nodes that are left to the layout that runs on them next. Pure, but for the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.movement import HeldUnit, replace_seats
from unicron_hpc.planner.search import best_layout
from unicron_hpc.planner.transition import next_layout
from unicron_hpc.planner.work import NodeSlots, TaskWork


class Choice(msgspec.Struct, frozen=True):
    """A layout and the reason in a word, for the journal.

    Attributes
    ----------
    reason
        `start`, `same seats` (only processes are replaced), `spare` or `redistributed`.
    """

    layout: Layout
    reason: str


def choose_layout(
    work: TaskWork,
    previous: Layout | None,
    active: Sequence[NodeSlots],
    spares: Sequence[NodeSlots],
    holdings: Mapping[Seat, Sequence[HeldUnit]],
) -> Choice:
    """The next layout of a task.

    Parameters
    ----------
    work
        The task, as the planner sees it.
    previous
        Its layout until now; None at the start.
    active, spares
        The task's nodes that still live, and the ones that may take a lost one's seats.
    holdings
        State that survivors hold, so that little of it moves.

    Raises
    ------
    PlanError
        When no layout fits on what is left.
    """
    if previous is None:
        return Choice(best_layout(work, active), "start")
    alive = {node.name for node in active}
    lost = {seat.node for seat in previous.seats} - alive
    if not lost:
        return Choice(previous, "same seats")
    moved = replace_seats(previous, lost, spares)
    if moved is not None:
        return Choice(moved, "spare")
    nodes = [*active, *spares]
    return Choice(next_layout(work, nodes, previous=previous, holdings=holdings).layout, "redistributed")

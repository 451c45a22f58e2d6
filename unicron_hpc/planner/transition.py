"""From what is left to the next layout: the fastest that needs no state nobody can send, moving least."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from unicron_hpc.planner.candidate import seated
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.movement import HeldUnit, MovePlan, moves
from unicron_hpc.planner.placement import place
from unicron_hpc.planner.scope import bench
from unicron_hpc.planner.search import Choice, search
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Layouts within this ratio of the fastest count as equal; the one that moves least wins.
EQUAL = 1e-6


class Transition(msgspec.Struct, frozen=True):
    """The next layout on its seats, what has to move, and the search behind it."""

    layout: Layout
    moves: MovePlan
    choice: Choice


def next_layout(
    work: TaskWork,
    nodes: Sequence[NodeSlots],
    *,
    previous: Layout | None,
    holdings: Mapping[Seat, Collection[HeldUnit]],
) -> Transition:
    """Best layout for `nodes`, placed where the state is.

    A faster layout that would unseat the only holder of a unit loses to a slower one that keeps it seated:
    reading state from disk costs more iterations than any difference between layouts.

    Raises
    ------
    PlanError
        When no layout fits.
    """
    choice = search(work, nodes, previous=previous)
    tied, learned = work.tied, work.learned_positions
    found: list[tuple[bool, int, Layout, MovePlan]] = []
    best = choice.candidate.seconds
    for candidate in (choice.candidate, *choice.runners_up):
        if found and candidate.seconds > best * (1 + EQUAL) and not all(lost for lost, *_ in found):
            break
        work_alone = seated(candidate, bench(nodes, candidate.tensor).places, work.num_layers)
        layout = place(work_alone, previous, nodes, holdings, tied=tied, learned_positions=learned)
        plan = moves(layout, holdings, tied=tied, learned_positions=learned)
        held = {(h.unit, h.tensor_index) for hs in holdings.values() for h in hs if h.tensor == layout.tensor}
        avoidable = any(key in held for key in plan.missing)
        found.append((avoidable, sum(m.bytes for m in plan.moves), layout, plan))
    _, _, layout, plan = min(found, key=lambda entry: (entry[0], entry[1]))
    return Transition(layout, plan, choice)

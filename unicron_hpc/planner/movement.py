"""Minimal movement: which state crosses the network when the layout changes, and who sends it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from unicron_hpc.planner.holdings import HeldUnit, held_by, newest
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.units import UnitKey, units_of
from unicron_hpc.planner.work import NodeSlots

__all__ = ["HeldUnit", "Move", "MovePlan", "held_by", "moves", "newest", "replace_seats"]


class Move(msgspec.Struct, frozen=True, order=True):
    """One unit's state to be sent from one rank of the new layout to another.

    Attributes
    ----------
    unit, tensor_index
        What is sent.
    source, target
        Rank numbers in the new layout.
    bytes
        Size of weights and optimizer state together.
    """

    unit: str
    tensor_index: int
    source: int
    target: int
    bytes: int


class MovePlan(msgspec.Struct, frozen=True):
    """Everything that has to be sent before a layout can run.

    Attributes
    ----------
    moves
        Sorted by target, then unit.
    missing
        (unit, tensor index) of what no rank of the layout holds at `iteration`: another copy (host memory,
        disk) must supply it.
    iteration
        The iteration that every rank stands at afterwards; None when nobody holds anything.
    """

    moves: tuple[Move, ...]
    missing: tuple[UnitKey, ...]
    iteration: int | None


def replace_seats(layout: Layout, lost: Collection[str], spares: Sequence[NodeSlots]) -> Layout | None:
    """The same work with the seats of lost nodes on spares, slot by slot.

    Parameters
    ----------
    layout
        What ran.
    lost
        Names of nodes that are gone; those without a seat do not matter.
    spares
        Nodes without a seat; the fastest that are large enough are taken.

    Returns
    -------
    Layout or None
        None when the spares do not suffice.
    """
    need: dict[str, int] = {}
    for seat in layout.seats:
        if seat.node in lost:
            need[seat.node] = max(need.get(seat.node, 0), seat.slot + 1)
    free = sorted(spares, key=lambda n: (n.slowdown, n.slots))
    instead: dict[str, str] = {}
    # The widest demand first: a smaller node must not take the only spare that is large enough.
    for node, slots in sorted(need.items(), key=lambda item: -item[1]):
        found = next((n for n in free if n.slots >= slots and n.name not in lost), None)
        if found is None:
            return None
        free.remove(found)
        instead[node] = found.name
    return layout.with_seats(tuple(Seat(instead.get(s.node, s.node), s.slot) for s in layout.seats))


def moves(
    layout: Layout,
    holdings: Mapping[Seat, Collection[HeldUnit]],
    *,
    tied: bool,
    learned_positions: bool,
    iteration: int | None = None,
    senders: Sequence[Seat] = (),
) -> MovePlan:
    """What must be sent so that every rank of `layout` holds its units.

    A source is a rank of `layout`, or one of `senders`. The nearest one sends: on the target's node first,
    then the one that has least to send so far.

    Parameters
    ----------
    layout
        The new layout.
    holdings
        What the processes hold, by seat; others than the places' cannot send.
    tied, learned_positions
        Of the model (`units.units_of`).
    iteration
        The iteration that all must stand at; None for the newest held by a seat of the layout.
    senders
        Seats that leave the task but still live; they count as ranks `layout.world_size`, ... in this order.
    """
    places = (*layout.seats, *senders)
    ranks = {seat: rank for rank, seat in enumerate(places)}
    seated = {seat: held for seat, held in holdings.items() if seat in ranks}
    if iteration is None:
        iteration = newest(seated, layout.tensor)
    sources: dict[UnitKey, list[int]] = {}
    size: dict[UnitKey, int] = {}
    for seat, held in seated.items():
        for h in held:
            if h.tensor == layout.tensor and h.iteration == iteration:
                sources.setdefault((h.unit, h.tensor_index), []).append(ranks[seat])
                size[(h.unit, h.tensor_index)] = h.bytes
    has = {key: set(found) for key, found in sources.items()}
    load: dict[int, int] = {}
    planned: list[Move] = []
    missing: set[UnitKey] = set()
    for position in layout.positions():
        for unit in units_of(position, tied=tied, learned_positions=learned_positions):
            key = (unit, position.tensor_index)
            if key not in sources:
                missing.add(key)
            elif position.rank not in has[key]:
                node = layout.seats[position.rank].node
                source = min(sources[key], key=lambda r: (places[r].node != node, load.get(r, 0), r))
                load[source] = load.get(source, 0) + size[key]
                planned.append(Move(unit, position.tensor_index, source, position.rank, size[key]))
    planned.sort(key=lambda m: (m.target, m.unit))
    return MovePlan(tuple(planned), tuple(sorted(missing)), iteration)

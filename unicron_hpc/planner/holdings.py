"""What the processes hold in memory: the state from which a layout can start."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.units import units_of


class HeldUnit(msgspec.Struct, frozen=True, order=True):
    """A piece of state in a process's memory.

    Attributes
    ----------
    unit
        Name of the unit (`units.py`).
    tensor_index, tensor
        The slice held: `tensor_index` of `tensor` equal slices.
    iteration
        Committed updates that the state contains.
    bytes
        Size of weights and optimizer state together.
    """

    unit: str
    tensor_index: int
    tensor: int
    iteration: int
    bytes: int


def held_by(
    layout: Layout, sizes: Mapping[str, int], *, tied: bool, learned_positions: bool, iteration: int = 0
) -> dict[Seat, tuple[HeldUnit, ...]]:
    """What every seat of a running layout holds: exactly its units.

    `sizes` gives the bytes of one tensor slice of each unit.
    """
    found: dict[Seat, tuple[HeldUnit, ...]] = {}
    for position in layout.positions():
        units = units_of(position, tied=tied, learned_positions=learned_positions)
        found[layout.seats[position.rank]] = tuple(
            HeldUnit(unit, position.tensor_index, layout.tensor, iteration, sizes[unit]) for unit in units
        )
    return found


def newest(holdings: Mapping[Seat, Collection[HeldUnit]], tensor: int) -> int | None:
    """The latest iteration at which anything usable is held."""
    return max((h.iteration for held in holdings.values() for h in held if h.tensor == tensor), default=None)

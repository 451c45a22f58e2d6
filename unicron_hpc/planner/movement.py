"""Minimal movement: which state crosses the network when the layout changes, and who sends it."""

from __future__ import annotations

import msgspec


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
    missing: tuple[tuple[str, int], ...]
    iteration: int | None

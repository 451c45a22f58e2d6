"""The state of one unit on one rank: weights and Adam moments in one flat tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from unicron_hpc.planner.units import UnitKey

#: Rows of `UnitState.flat`.
WEIGHT, EXP_AVG, EXP_AVG_SQ = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter inside a unit.

    Attributes
    ----------
    name
        Name within the unit, the same in every layout, e.g. `self_attention.linear_qkv.weight`.
    shape
        Local shape: the tensor-parallel slice that this rank holds.
    partition_dim
        Dimension along which tensor parallelism splits it; None when every tensor rank holds all of it.
    offset
        First element inside a row of `flat`.
    blocks
        The split dimension consists of so many equal blocks, each split on its own: 2 for a gated
        feed-forward layer, whose gate and up halves lie one after the other in every slice.
    """

    name: str
    shape: tuple[int, ...]
    partition_dim: int | None
    offset: int
    blocks: int = 1

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(slots=True)
class UnitState:
    """Weights and optimizer state of one unit (`planner/units.py`).

    Attributes
    ----------
    unit, tensor_index, tensor
        Name, this slice's index, and the tensor-parallel degree.
    entries
        The parameters, in the order in which they lie in `flat`.
    flat
        float32, shape [3, numel]: rows are weights, Adam's first and second moment.
    iteration
        How many committed iterations this state contains.
    """

    unit: str
    tensor_index: int
    tensor: int
    entries: tuple[Entry, ...]
    flat: torch.Tensor
    iteration: int

    def views(self, row: int) -> Iterator[tuple[Entry, torch.Tensor]]:
        """Each parameter's view into one row of `flat`, in its own shape."""
        for entry in self.entries:
            yield entry, self.flat[row, entry.offset : entry.offset + entry.numel].view(entry.shape)

    def digest(self) -> bytes:
        """Blake2b-128 of the whole state's bytes."""
        data = self.flat.detach().cpu().contiguous().numpy()
        return hashlib.blake2b(data.data.cast("B"), digest_size=16).digest()


#: What a rank holds: (unit, tensor index) -> state.
UnitStates = Mapping[UnitKey, UnitState]

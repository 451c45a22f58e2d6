"""Which parameter of a Megatron chunk belongs to which unit, and how a unit lies in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)

from unicron_hpc.planner.units import (
    FINAL_NORM,
    OUTPUT,
    POSITION_EMBEDDING,
    WORD_EMBEDDING,
    UnitKey,
    layer_unit,
)
from unicron_hpc.runtime.unit_state import Entry, UnitState

#: How a parameter starts: Megatron's three methods, or a constant.
Start = Literal["embedding", "input", "output", "zeros", "ones"]

_LAYERS = "decoder.layers."
_WHOLE_MODULES = {
    "embedding.word_embeddings": WORD_EMBEDDING,
    "embedding.position_embeddings": POSITION_EMBEDDING,
    "decoder.final_layernorm": FINAL_NORM,
}


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """One unit's slice as this rank must hold it; the same on every rank with the same slice.

    Attributes
    ----------
    unit, tensor_index, tensor
        As in `UnitState`.
    entries
        Parameters as they lie in the flat tensor: those with weight decay first.
    numel, decayed
        Elements in a row, and how many of them, from the start, get weight decay.
    starts
        How each entry is initialised.
    """

    unit: str
    tensor_index: int
    tensor: int
    entries: tuple[Entry, ...]
    numel: int
    decayed: int
    starts: tuple[Start, ...]

    @property
    def key(self) -> UnitKey:
        return self.unit, self.tensor_index

    def state(self, flat: torch.Tensor, iteration: int) -> UnitState:
        """A state of this shape around `flat`."""
        return UnitState(self.unit, self.tensor_index, self.tensor, self.entries, flat, iteration)


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    parameter: torch.nn.Parameter
    partition_dim: int | None
    blocks: int
    start: Start


def map_units(
    module: torch.nn.Module, *, first_layer: int, tied: bool, gated: bool, tensor_index: int, tensor: int
) -> tuple[tuple[UnitSpec, ...], dict[tuple[str, str], torch.nn.Parameter]]:
    """Sort a chunk's parameters into units.

    Parameters
    ----------
    module
        A Megatron `GPTModel`, whose layers count from 0.
    first_layer
        Global number of its first layer.
    gated
        Whether the feed-forward layer is gated (SwiGLU).

    Returns
    -------
    specs, parameters
        The units in model order, and (unit, entry name) -> parameter.
    """
    found: dict[str, list[_Found]] = {}
    for path, child in module.named_modules():
        for leaf, parameter in child.named_parameters(recurse=False):
            unit, name = _address(f"{path}.{leaf}", first_layer, tied)
            found.setdefault(unit, []).append(_describe(child, name, parameter, gated))
    parameters = {(unit, item.name): item.parameter for unit, items in found.items() for item in items}
    specs = tuple(_lay_out(unit, items, tensor_index, tensor) for unit, items in found.items())
    return specs, parameters


def _address(name: str, first_layer: int, tied: bool) -> tuple[str, str]:
    """Megatron's parameter name in a chunk -> (unit, name within the unit)."""
    if name.startswith(_LAYERS):
        number, _, rest = name[len(_LAYERS) :].partition(".")
        return layer_unit(first_layer + int(number)), rest
    owner, _, leaf = name.rpartition(".")
    if owner == "output_layer":
        return (WORD_EMBEDDING if tied else OUTPUT), leaf
    return _WHOLE_MODULES[owner], leaf


def _describe(owner: torch.nn.Module, name: str, parameter: torch.nn.Parameter, gated: bool) -> _Found:
    start: Start = "zeros" if name.endswith("bias") else "ones"
    dim: int | None = None
    blocks = 1
    if isinstance(owner, VocabParallelEmbedding):
        dim, start = 0, "embedding"
    elif isinstance(owner, torch.nn.Embedding):
        start = "embedding"
    elif isinstance(owner, ColumnParallelLinear):
        dim = 0
        blocks = 2 if gated and name.startswith("mlp.linear_fc1.") else 1
        start = "input" if name.endswith("weight") else "zeros"
    elif isinstance(owner, RowParallelLinear) and name.endswith("weight"):
        dim, start = 1, "output"
    return _Found(name, parameter, dim, blocks, start)


def _lay_out(unit: str, items: Iterable[_Found], tensor_index: int, tensor: int) -> UnitSpec:
    # Megatron's rule: no weight decay for biases and one-dimensional parameters.
    ordered = sorted(items, key=lambda item: item.parameter.dim() < 2)
    entries: list[Entry] = []
    offset = decayed = 0
    for item in ordered:
        shape = tuple(item.parameter.shape)
        entries.append(Entry(item.name, shape, item.partition_dim, offset, item.blocks))
        offset += item.parameter.numel()
        if item.parameter.dim() >= 2:
            decayed = offset
    starts = tuple(item.start for item in ordered)
    return UnitSpec(unit, tensor_index, tensor, tuple(entries), offset, decayed, starts)

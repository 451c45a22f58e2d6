"""A new model's weights: they follow from (seed, unit, parameter) alone, whatever the layout."""

from __future__ import annotations

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from unicron_hpc.runtime.rng import content_seed
from unicron_hpc.runtime.unit_map import Start, UnitSpec
from unicron_hpc.runtime.unit_state import Entry, UnitState


def initial_state(spec: UnitSpec, config: TransformerConfig, seed: int, device: torch.device) -> UnitState:
    """The unit before the first iteration: Megatron's initial weights, zero moments.

    Each parameter is drawn whole, under its own seed, and then sliced for the tensor rank: slices of every
    tensor-parallel degree are parts of the same model.
    """
    state = spec.state(torch.zeros(3, spec.numel), iteration=0)
    for (entry, weight), start in zip(state.views(0), spec.starts, strict=True):
        weight.copy_(
            slice_of(_whole(spec, entry, start, config, seed), entry, spec.tensor_index, spec.tensor)
        )
    state.flat = state.flat.to(device)
    return state


def slice_of(whole: torch.Tensor, entry: Entry, index: int, tensor: int) -> torch.Tensor:
    """The part of a whole parameter that tensor rank `index` of `tensor` holds."""
    if entry.partition_dim is None or tensor == 1:
        return whole
    dim = entry.partition_dim
    blocks = whole.chunk(entry.blocks, dim)
    return torch.cat([block.chunk(tensor, dim)[index] for block in blocks], dim)


def _whole(spec: UnitSpec, entry: Entry, start: Start, config: TransformerConfig, seed: int) -> torch.Tensor:
    shape = list(entry.shape)
    if entry.partition_dim is not None:
        shape[entry.partition_dim] *= spec.tensor
    whole = torch.empty(shape)
    if start == "zeros":
        return whole.zero_()
    if start == "ones":
        return whole.fill_(1.0)
    methods = {
        "embedding": config.embedding_init_method,
        "input": config.init_method,
        "output": config.output_layer_init_method,
    }
    torch.default_generator.manual_seed(content_seed(seed, spec.unit, entry.name))
    with torch.no_grad():
        methods[start](whole)
    return whole

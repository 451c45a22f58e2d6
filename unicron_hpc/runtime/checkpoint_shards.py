"""How unit state maps to the global tensors of a Megatron checkpoint, whatever the layout.

Each row of each entry is one global tensor named `<unit>.<entry>.weight`, `.exp_avg` or `.exp_avg_sq`.
Tensor-parallel slices are chunks of it along `Entry.partition_dim`, so a checkpoint can be read at any
pipeline depth, replica count and tensor degree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.strategies.checkpointable import CheckpointableShardedTensor

from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime.unit_state import EXP_AVG, EXP_AVG_SQ, WEIGHT, Entry, UnitState

#: Suffix of each row's global tensors.
ROW_NAMES = {WEIGHT: "weight", EXP_AVG: "exp_avg", EXP_AVG_SQ: "exp_avg_sq"}

#: A (unit, tensor index) and the ranks that hold it, as `planner.units.holders` returns it.
Holders = Mapping[UnitKey, Sequence[int]]


def writers(holders: Holders) -> dict[UnitKey, int]:
    """Which rank writes which slice: each is written once, and the holders take turns.

    Every rank computes the same answer from the layout, so nobody has to be asked.
    """
    turn: dict[tuple[int, ...], int] = {}
    chosen: dict[UnitKey, int] = {}
    for key in sorted(holders):
        ranks = tuple(sorted(holders[key]))
        chosen[key] = ranks[turn.get(ranks, 0) % len(ranks)]
        turn[ranks] = turn.get(ranks, 0) + 1
    return chosen


def shards_of(state: UnitState) -> Iterator[ShardedTensor]:
    """Every entry and row of a unit as Megatron's `ShardedTensor`, sharing memory with `state.flat`.

    An entry of several blocks (a gated feed-forward layer) gets an axis more, [blocks, rows, ...]: its
    blocks are cut separately by tensor parallelism, so without the axis a slice of one degree would be
    no part of a slice of another. `replica_id` is always 0, since only the writer makes shards.
    """
    for row, suffix in ROW_NAMES.items():
        for entry, view in state.views(row):
            yield _shard(state, entry, suffix, view)


def checkpointable(shards: Iterator[ShardedTensor]) -> dict[str, torch.Tensor]:
    """Megatron's shards as the state dict that torch's checkpoint planners take.

    The translation of `megatron.core.dist_checkpointing.strategies.torch`, which itself asks the default
    process group for its rank; here none is needed.
    """
    return {shard.key: CheckpointableShardedTensor.from_sh_ten(shard) for shard in shards}


def _shard(state: UnitState, entry: Entry, suffix: str, view: torch.Tensor) -> ShardedTensor:
    dim = entry.partition_dim
    if dim is not None and entry.blocks > 1:
        rows = entry.shape[dim] // entry.blocks
        view = view.view(*entry.shape[:dim], entry.blocks, rows, *entry.shape[dim + 1 :])
        dim += 1
    cut = () if dim is None else ((dim, state.tensor_index, state.tensor),)
    return ShardedTensor.from_rank_offsets(f"{state.unit}.{entry.name}.{suffix}", view, *cut)

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

from unicron_hpc.runtime.unit_state import EXP_AVG, EXP_AVG_SQ, WEIGHT, Entry, UnitState

#: Suffix of each row's global tensors.
ROW_NAMES = {WEIGHT: "weight", EXP_AVG: "exp_avg", EXP_AVG_SQ: "exp_avg_sq"}

#: Entries in which a gated linear unit keeps gate and value one above the other on every tensor rank.
_GATED_ENTRIES = frozenset({"mlp.linear_fc1.weight", "mlp.linear_fc1.bias"})

#: A (unit, tensor index) and the ranks that hold it, as `planner.units.holders` returns it.
Holders = Mapping[tuple[str, int], Sequence[int]]


def writers(holders: Holders) -> dict[tuple[str, int], int]:
    """Which rank writes which slice: each is written once, and the holders take turns.

    Every rank computes the same answer from the layout, so nobody has to be asked.
    """
    turn: dict[tuple[int, ...], int] = {}
    chosen: dict[tuple[str, int], int] = {}
    for key in sorted(holders):
        ranks = tuple(sorted(holders[key]))
        chosen[key] = ranks[turn.get(ranks, 0) % len(ranks)]
        turn[ranks] = turn.get(ranks, 0) + 1
    return chosen


def shards_of(state: UnitState, *, gated: bool, replica: int = 0) -> Iterator[ShardedTensor]:
    """Every entry and row of a unit as Megatron's `ShardedTensor`, sharing memory with `state.flat`.

    Parameters
    ----------
    state
        One tensor-parallel slice of a unit.
    gated
        Whether the MLP is a gated linear unit (`swiglu`): its first matrix is stored as [2, rows, ...],
        because gate and value are cut separately by tensor parallelism.
    replica
        0 on the rank that writes the slice (Megatron's `replica_id`).
    """
    for row, suffix in ROW_NAMES.items():
        for entry, view in state.views(row):
            yield _shard(state, entry, suffix, view, gated=gated, replica=replica)


def checkpointable(shards: Iterator[ShardedTensor]) -> dict[str, torch.Tensor]:
    """Megatron's shards as the state dict that torch's checkpoint planners take.

    The translation of `megatron.core.dist_checkpointing.strategies.torch`, which itself asks the default
    process group for its rank; here none is needed.
    """
    return {shard.key: CheckpointableShardedTensor.from_sh_ten(shard) for shard in shards}


def _shard(
    state: UnitState, entry: Entry, suffix: str, view: torch.Tensor, *, gated: bool, replica: int
) -> ShardedTensor:
    dim = entry.partition_dim
    if gated and dim == 0 and entry.name in _GATED_ENTRIES:
        view = view.view(2, entry.shape[0] // 2, *entry.shape[1:])
        dim = 1
    cut = () if dim is None else ((dim, state.tensor_index, state.tensor),)
    return ShardedTensor.from_rank_offsets(
        f"{state.unit}.{entry.name}.{suffix}", view, *cut, replica_id=replica
    )

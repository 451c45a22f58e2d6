"""Saving: Megatron's `dist_checkpointing` format, in the background, without a single collective.

Megatron's own asynchronous save gathers the plans of all ranks before writing and their results after
it, over the process group: a rank that dies in between blocks the others, and a transition that cuts the
groups loses the checkpoint. Here every rank knows from the layout alone what it writes
(`checkpoint_shards.writers`), writes its data and a small table of where each shard lies, and any one
rank turns the tables into Megatron's metadata once all have finished. The result is an ordinary
`torch_dist` checkpoint: `megatron.core.dist_checkpointing.load` reads it.

The order of a save::

    main thread   begin_save(...)                 each rank; checks and keeps references, microseconds
    background    PendingSave.write()             each rank; no process group is touched
    any one rank  finish_save(...)                when all have written
    coordinator   manifest.write_manifest, publish
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME
from megatron.core.dist_checkpointing.strategies.torch import MCoreSavePlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystemWriter,
    _StorageInfo,
    _StoragePrefix,
)
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from unicron_hpc.errors import UnicronError
from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime.checkpoint_files import HashingFileSystem, sync_file, write_file
from unicron_hpc.runtime.checkpoint_shards import Holders, checkpointable, shards_of, writers
from unicron_hpc.runtime.manifest import WrittenFile, describe_file, new_digest, sync_directory
from unicron_hpc.runtime.unit_state import UnitState, UnitStates


class _Shard(msgspec.Struct, frozen=True):
    """Where one shard lies: part of which global tensor, and which bytes of which file."""

    key: str
    size: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


class _Table(msgspec.Struct, frozen=True):
    """What one rank wrote."""

    units: tuple[UnitKey, ...]
    shards: tuple[_Shard, ...]


def units_to_write(holders: Holders, rank: int) -> tuple[UnitKey, ...]:
    """The slices that `rank` writes: the only ones of which a save needs a snapshot."""
    return tuple(key for key, writer in writers(holders).items() if writer == rank)


def snapshot(
    states: UnitStates, holders: Holders, rank: int, *, reuse: UnitStates | None = None
) -> dict[UnitKey, UnitState]:
    """Copies in host memory of what `rank` has to write; training may go on as soon as this returns.

    Parameters
    ----------
    states
        Everything that the rank holds.
    holders, rank
        As in `begin_save`.
    reuse
        An earlier snapshot whose `PendingSave.write` has returned: its memory is overwritten where the
        shapes agree, which spares the page faults that make up most of a fresh copy's time.

    Raises
    ------
    UnicronError
        When the rank lacks a slice that the layout gives it.
    """
    copies: dict[UnitKey, UnitState] = {}
    for key in units_to_write(holders, rank):
        state = _state(states, key, rank)
        old = None if reuse is None else reuse.get(key)
        if old is not None and old.flat.shape == state.flat.shape:
            flat = old.flat.copy_(state.flat.detach())
        else:
            flat = state.flat.detach().to("cpu", copy=True)
        copies[key] = UnitState(
            unit=state.unit,
            tensor_index=state.tensor_index,
            tensor=state.tensor,
            entries=state.entries,
            flat=flat,
            iteration=state.iteration,
        )
    return copies


@dataclass(frozen=True, slots=True)
class PendingSave:
    """A rank's part of a checkpoint that is yet to be written."""

    directory: Path
    rank: int
    states: tuple[UnitState, ...]

    def write(self) -> tuple[WrittenFile, ...]:
        """Write this rank's files and sync them. For a background thread; touches no process group.

        Returns
        -------
        tuple of WrittenFile
            To be handed, from every rank, to `finish_save`. Checksums are of the bytes that were meant to
            be written, taken on their way to the file.

        Raises
        ------
        UnicronError
            When the disk refuses.
        """
        shards = (shard for state in self.states for shard in shards_of(state))
        planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            planner.set_up_planner(checkpointable(shards), is_coordinator=False)
            local = planner.create_local_plan()
            plan = planner.finish_plan(SavePlan(local.items, storage_data=_StoragePrefix(f"__{self.rank}_")))
            writer = FileSystemWriter(self.directory, thread_count=1, sync_files=True)
            files = HashingFileSystem()
            writer.fs = files
            results = writer.write_data(plan, planner).value() if plan.items else []
            table = _table(self.states, plan, results)
            table_file = write_file(self.directory / _table_name(self.rank), msgspec.json.encode(table))
            sync_directory(self.directory)
        except OSError as error:
            raise UnicronError(
                f"rank {self.rank} cannot write its part of the checkpoint: {error}",
                where=str(self.directory),
                hint="Check free space and permissions of checkpoint.dir.",
            ) from error
        return (*files.written, table_file)


def begin_save(
    directory: Path,
    states: UnitStates,
    *,
    rank: int,
    holders: Holders,
    iteration: int,
) -> PendingSave:
    """Check that `states` are what this rank has to write; starts no I/O and no communication.

    Parameters
    ----------
    directory
        `<checkpoint.dir>/<manifest.partial_name(iteration, epoch)>`, the same on every rank.
    states
        A snapshot: it must not change until `write` has returned. More than what is written is fine.
    rank
        This rank's number in the layout.
    holders
        `planner.units.holders(layout, ...)`.
    iteration
        The number of committed iterations that every state must have.

    Raises
    ------
    UnicronError
        When a state is missing, is not in host memory or belongs to another iteration.
    """
    mine = tuple(_state(states, key, rank) for key in units_to_write(holders, rank))
    for state in mine:
        if state.iteration != iteration:
            raise UnicronError(
                f"state of {state.unit} contains iteration {state.iteration}, not {iteration}",
                where=f"rank {rank}",
            )
        if state.flat.device.type != "cpu":
            raise UnicronError(
                f"state of {state.unit} is not a snapshot in host memory", where=f"rank {rank}"
            )
    return PendingSave(directory, rank, mine)


def finish_save(
    directory: Path,
    written: Sequence[WrittenFile],
    *,
    holders: Holders,
    common: Mapping[str, Any],
) -> tuple[WrittenFile, ...]:
    """Write Megatron's metadata once every rank has written. For one process, any one.

    Parameters
    ----------
    directory
        The folder given to `begin_save`.
    written
        What `PendingSave.write` returned on all ranks, together.
    holders
        The layout's, to be sure that nothing is missing.
    common
        Plain JSON values, also stored in Megatron's `common.pt`.

    Returns
    -------
    tuple of WrittenFile
        All files of the checkpoint, for `manifest.write_manifest`.

    Raises
    ------
    UnicronError
        When a unit was not written or was written twice, or a table was damaged on the way.
    """
    tables = [file for file in written if file.name.endswith(_TABLE_SUFFIX)]
    contents = [_read_table(directory, file) for file in tables]
    units = [tuple(unit) for table in contents for unit in table.units]
    missing = set(holders) - set(units)
    if missing or len(units) != len(holders):
        what = "was written twice" if not missing else f"is missing: {', '.join(_names(missing))}"
        raise UnicronError(f"part of the checkpoint {what}", where=str(directory))
    planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
    # An empty plan keeps torch's check that the chunks fill their tensors, which it skips for a single one.
    plans = [*(SavePlan([_write_item(shard) for shard in table.shards]) for table in contents), SavePlan([])]
    try:
        _, metadata = planner.create_global_plan(plans)
    except ValueError as error:
        raise UnicronError(f"the ranks' parts do not fit together: {error}", where=str(directory)) from error
    try:
        writer = FileSystemWriter(directory, thread_count=1, sync_files=True)
        files = HashingFileSystem()
        writer.fs = files
        writer.finish(metadata, [[_write_result(shard) for shard in table.shards] for table in contents])
        metadata_file = msgspec.structs.replace(files.written[-1], name=".metadata")
        saved_common = io.BytesIO()
        torch.save(json.loads(json.dumps(dict(common))), saved_common)
        common_file = write_file(directory / COMMON_STATE_FNAME, saved_common.getvalue())
        save_config(CheckpointingConfig("torch_dist", 1), str(directory))
        config_path = directory / "metadata.json"
        config_path.chmod(0o600)
        sync_file(config_path)
        for table_file in tables:
            (directory / table_file.name).unlink()
        sync_directory(directory)
        data = [file for file in written if not file.name.endswith(_TABLE_SUFFIX)]
        return (*data, metadata_file, common_file, describe_file(config_path))
    except OSError as error:
        raise UnicronError(
            f"cannot write the checkpoint's metadata: {error}", where=str(directory)
        ) from error


_TABLE_SUFFIX = ".shards.json"


def _table_name(rank: int) -> str:
    return f"__{rank}{_TABLE_SUFFIX}"


def _state(states: UnitStates, key: UnitKey, rank: int) -> UnitState:
    try:
        return states[key]
    except KeyError:
        raise UnicronError(
            f"state of {key[0]} (tensor index {key[1]}) is not held by the rank that has to save it",
            where=f"rank {rank}",
        ) from None


def _names(keys: Collection[UnitKey]) -> list[str]:
    return [f"{unit} (tensor index {index})" for unit, index in sorted(keys)]


def _table(states: Sequence[UnitState], plan: SavePlan, results: Sequence[WriteResult]) -> _Table:
    places = {result.index: result.storage_data for result in results}
    shards: list[_Shard] = []
    for item in plan.items:
        data, place = cast(TensorWriteData, item.tensor_data), places[item.index]
        shards.append(
            _Shard(
                key=item.index.fqn,
                size=tuple(data.size),
                offsets=tuple(data.chunk.offsets),
                sizes=tuple(data.chunk.sizes),
                file=place.relative_path,
                start=place.offset,
                length=place.length,
            )
        )
    return _Table(tuple((state.unit, state.tensor_index) for state in states), tuple(shards))


def _read_table(directory: Path, file: WrittenFile) -> _Table:
    path = directory / file.name
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UnicronError(f"a rank's table of shards cannot be read: {error}", where=str(path)) from error
    digest = new_digest()
    digest.update(raw)
    if digest.hexdigest() != file.checksum:
        raise UnicronError("a rank's table of shards was damaged on disk", where=str(path))
    return msgspec.json.decode(raw, type=_Table)


def _write_item(shard: _Shard) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(shard.key, shard.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(torch.Size(shard.offsets), torch.Size(shard.sizes)),
            properties=TensorProperties(dtype=torch.float32),
            size=torch.Size(shard.size),
        ),
    )


def _write_result(shard: _Shard) -> WriteResult:
    return WriteResult(
        index=MetadataIndex(shard.key, shard.offsets),
        size_in_bytes=shard.length,
        storage_data=_StorageInfo(shard.file, shard.start, shard.length),
    )

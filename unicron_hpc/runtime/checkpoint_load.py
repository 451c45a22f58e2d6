"""Loading: any rank of any layout reads the slices it needs, alone, and only if they are sound.

Uses no process group, so a rank can load while the others do something else, or before groups exist.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from megatron.core.dist_checkpointing.strategies.torch import MCoreLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from unicron_hpc.errors import UnicronError
from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime.checkpoint_shards import checkpointable, shards_of
from unicron_hpc.runtime.manifest import Manifest, check_model, content_problem, read_manifest
from unicron_hpc.runtime.unit_state import Entry, UnitState


class Slice(Protocol):
    """What describes a slice to be loaded, in the caller's own layout: a `UnitSpec` or a `UnitState`."""

    @property
    def unit(self) -> str: ...

    @property
    def tensor_index(self) -> int: ...

    @property
    def tensor(self) -> int: ...

    @property
    def entries(self) -> tuple[Entry, ...]: ...


class Wanted(NamedTuple):
    """The plainest `Slice`. `entries` have local shapes, as in `UnitState`."""

    unit: str
    tensor_index: int
    tensor: int
    entries: tuple[Entry, ...]


def load_units(
    directory: Path,
    wanted: Sequence[Slice],
    *,
    model: Mapping[str, Any] | None = None,
) -> dict[UnitKey, UnitState]:
    """Read the state of `wanted` from a checkpoint written under any layout.

    Parameters
    ----------
    directory
        A checkpoint with its final name (`manifest.newest_whole`).
    wanted
        Slices of the caller's own layout; no other rank has to load at the same time.
    model
        When given, the checkpoint must have been saved with exactly these model arguments.

    Returns
    -------
    dict
        (unit, tensor index) -> state in host memory, `flat` of shape [3, numel].

    Raises
    ------
    ConfigError
        When the checkpoint holds another model; names every argument that differs.
    UnicronError
        When a tensor is missing or has another shape, or a file that is needed is damaged; names it.
    """
    manifest = read_manifest(directory)
    if model is not None:
        check_model(manifest, model, where=str(directory))
    states = {(want.unit, want.tensor_index): _empty(want, manifest.iteration) for want in wanted}
    metadata = _read_metadata(directory, manifest)
    shards = [shard for state in states.values() for shard in shards_of(state)]
    for shard in shards:
        known = metadata.state_dict_metadata.get(shard.key)
        if not isinstance(known, TensorStorageMetadata):
            raise UnicronError(f"the checkpoint has no {shard.key}", where=str(directory))
        if tuple(known.size) != shard.global_shape:
            raise UnicronError(
                f"{shard.key} has shape {list(known.size)} in the checkpoint,"
                f" {list(shard.global_shape)} in the model",
                where=str(directory),
            )
    planner = MCoreLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(checkpointable(iter(shards)), metadata=metadata, is_coordinator=True)
    plan = planner.finish_plan(planner.create_local_plan())
    _check_files(
        directory, manifest, {metadata.storage_data[item.storage_index].relative_path for item in plan.items}
    )
    reader = FileSystemReader(directory)
    reader.set_up_storage_reader(metadata, True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader.read_data(plan, planner).wait()
    return states


def _empty(want: Slice, iteration: int) -> UnitState:
    numel = max((entry.offset + entry.numel for entry in want.entries), default=0)
    return UnitState(
        unit=want.unit,
        tensor_index=want.tensor_index,
        tensor=want.tensor,
        entries=want.entries,
        flat=torch.zeros(3, numel, dtype=torch.float32),
        iteration=iteration,
    )


def _check_files(directory: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Every file about to be read is the one that was written."""
    known = {file.name: file for file in manifest.files}
    for name in sorted(names):
        if name not in known:
            raise UnicronError(
                "a file that the checkpoint needs is not in its manifest", where=str(directory / name)
            )
        if problem := content_problem(directory, known[name]):
            raise UnicronError(
                f"the checkpoint is damaged: {problem}",
                where=str(directory),
                hint="The next start skips it and takes the newest whole one.",
            )


def _read_metadata(directory: Path, manifest: Manifest) -> Metadata:
    """Megatron's `.metadata`, checked, and unpickled with nothing but its own classes allowed."""
    _check_files(directory, manifest, [".metadata"])
    raw = (directory / ".metadata").read_bytes()
    try:
        metadata = _MetadataUnpickler(io.BytesIO(raw)).load()
    except Exception as error:  # a hostile or foreign pickle can raise anything
        raise UnicronError(
            f"the checkpoint's metadata cannot be read: {error}", where=str(directory / ".metadata")
        ) from error
    if not isinstance(metadata, Metadata):
        raise UnicronError("the checkpoint's metadata is of another kind", where=str(directory / ".metadata"))
    return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """Unpickles what torch writes into `.metadata`; a file that names anything else is refused."""

    _ALLOWED = frozenset(
        {
            *(
                ("torch.distributed.checkpoint.metadata", name)
                for name in (
                    "Metadata",
                    "TensorStorageMetadata",
                    "BytesStorageMetadata",
                    "TensorProperties",
                    "ChunkStorageMetadata",
                    "MetadataIndex",
                    "StorageMeta",
                    "_MEM_FORMAT_ENCODING",
                )
            ),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            ("torch", "Size"),
            ("torch", "float32"),
            ("torch.serialization", "_get_layout"),
            ("pathlib", "PosixPath"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong there")
        return super().find_class(module, name)

"""Which checkpoints are whole: the manifest written last, and the checks before anything is loaded.

A checkpoint is written into `iter_0000050.partial-<epoch>`; when every file is on disk the manifest
(sizes and checksums of all files) is written, and only then the folder gets its final name
`iter_0000050`. Whatever is interrupted on the way leaves no folder that could pass for whole.

Imports neither torch nor Megatron: the coordinator and the command line use it too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from unicron_hpc.errors import ConfigError, UnicronError

MANIFEST_NAME = "manifest.json"
#: Version of the manifest's own format.
FORMAT = 1

_NAME = re.compile(r"iter_(?P<iteration>\d{7,})(?P<partial>\.partial-[\w.-]+)?")
#: Hashing releases the interpreter lock, so a few threads read a checkpoint at the disk's speed.
_READERS = 4


class WrittenFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint: name inside its folder, size in bytes, blake2b-128 in hex."""

    name: str
    bytes: int
    checksum: str


class Manifest(msgspec.Struct, frozen=True):
    """Content of `manifest.json`.

    Attributes
    ----------
    format
        `FORMAT`.
    iteration
        Committed iterations that the state contains.
    files
        Every file that loading may read.
    common
        What is the same on all ranks: `seed`, `version` of this package, `model` (its arguments), ...
    layout
        Summary of the layout that wrote it, for people; loading never needs it.
    checksum
        Blake2b-128 (hex) of the manifest itself with this field empty.
    """

    format: int
    iteration: int
    files: tuple[WrittenFile, ...]
    common: dict[str, Any]
    layout: dict[str, Any]
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a checkpoint is whole, and if not, why."""

    whole: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A whole checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def iteration(self) -> int:
        return self.manifest.iteration


class Skipped(NamedTuple):
    """A folder that was passed over, and the reason."""

    path: Path
    why: str


def checkpoint_name(iteration: int) -> str:
    """Folder name of a whole checkpoint."""
    return f"iter_{iteration:07d}"


def partial_name(iteration: int, epoch: int) -> str:
    """Folder name while it is being written; the epoch keeps two attempts apart."""
    return f"{checkpoint_name(iteration)}.partial-{epoch}"


def new_digest() -> hashlib.blake2b:
    """The checksum used for files and for the manifest."""
    return hashlib.blake2b(digest_size=16)


def sync_directory(path: Path) -> None:
    """Make renames and new names inside `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_file(path: Path) -> WrittenFile:
    """Size and checksum of a file, read back from disk."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, new_digest)
        return WrittenFile(path.name, stream.tell(), digest.hexdigest())


def write_manifest(
    directory: Path,
    *,
    iteration: int,
    files: Sequence[WrittenFile],
    layout_summary: Mapping[str, Any],
    common: Mapping[str, Any],
) -> Manifest:
    """Write the manifest of a checkpoint whose files are all on disk. The last step before `publish`.

    Parameters
    ----------
    directory
        The folder being written.
    iteration
        Committed iterations that the state contains.
    files
        Names, sizes and checksums, as `checkpoint.finish_save` returned them.
    layout_summary, common
        Plain JSON values; see `Manifest`.

    Raises
    ------
    UnicronError
        When a file is absent or has another size than was reported, or the disk refuses.
    """
    unsigned = Manifest(
        format=FORMAT,
        iteration=iteration,
        files=tuple(sorted(files, key=lambda file: file.name)),
        common=dict(common),
        layout=dict(layout_summary),
    )
    if (why := next(_file_problems(directory, unsigned.files, contents=False), "")) != "":
        raise UnicronError(
            f"checkpoint of iteration {iteration} is not complete: {why}", where=str(directory)
        )
    manifest = msgspec.structs.replace(unsigned, checksum=_own_checksum(unsigned))
    temporary = directory / f"{MANIFEST_NAME}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(directory / MANIFEST_NAME)
        sync_directory(directory)
    except OSError as error:
        raise UnicronError(f"cannot write the manifest: {error}", where=str(directory)) from error
    return manifest


def publish(partial: Path) -> Path:
    """Give a folder with a manifest its final name, and make that last.

    A whole checkpoint that already has the name stays and `partial` goes: both hold the same iteration
    of the same training. A broken one is replaced.

    Returns
    -------
    Path
        The checkpoint's final path.
    """
    manifest = read_manifest(partial)
    final = partial.with_name(checkpoint_name(manifest.iteration))
    try:
        if final.exists():
            if verify(final).whole:
                _remove(partial)
                return final
            _remove(final)
        partial.rename(final)
        sync_directory(final.parent)
    except OSError as error:
        raise UnicronError(
            f"cannot rename the checkpoint to {final.name}: {error}", where=str(partial)
        ) from error
    return final


def read_manifest(directory: Path) -> Manifest:
    """The manifest of `directory`, checked against its own checksum.

    Raises
    ------
    UnicronError
        When it is absent, unreadable or damaged; the message says which.
    """
    path = directory / MANIFEST_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UnicronError("no manifest: the checkpoint was never finished", where=str(directory)) from None
    except OSError as error:
        raise UnicronError(f"manifest cannot be read: {error}", where=str(path)) from error
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnicronError(f"manifest is not valid JSON of its format: {error}", where=str(path)) from error
    if manifest.format != FORMAT:
        raise UnicronError(
            f"manifest has format {manifest.format}, this version reads {FORMAT}", where=str(path)
        )
    if manifest.checksum != _own_checksum(msgspec.structs.replace(manifest, checksum="")):
        raise UnicronError("manifest is damaged: its checksum differs", where=str(path))
    return manifest


def verify(directory: Path, *, contents: bool = True) -> Verdict:
    """Whether the checkpoint in `directory` can be loaded.

    Parameters
    ----------
    directory
        A folder with its final name.
    contents
        Read every file and compare checksums; otherwise names and sizes only.
    """
    match = _NAME.fullmatch(directory.name)
    if match is None:
        return Verdict(False, f"{directory.name} is not the name of a checkpoint")
    if match["partial"]:
        return Verdict(False, "half-written: the checkpoint never got its final name")
    try:
        manifest = read_manifest(directory)
    except UnicronError as error:
        return Verdict(False, error.message)
    if checkpoint_name(manifest.iteration) != directory.name:
        return Verdict(
            False, f"folder is named {directory.name}, its manifest says iteration {manifest.iteration}"
        )
    why = next(_file_problems(directory, manifest.files, contents=contents), "")
    return Verdict(not why, why)


def newest_whole(root: Path) -> tuple[Found | None, tuple[Skipped, ...]]:
    """The newest checkpoint under `root` that passes `verify`, and the newer ones that did not.

    Raises
    ------
    UnicronError
        When `root` exists and cannot be listed.
    """
    skipped: list[Skipped] = []
    for path in _candidates(root):
        verdict = verify(path)
        if verdict.whole:
            return Found(path, read_manifest(path)), tuple(skipped)
        skipped.append(Skipped(path, verdict.why))
    return None, tuple(skipped)


def prune(root: Path, keep: int, *, known_whole: Collection[Path] = ()) -> tuple[Path, ...]:
    """Delete what the `keep` newest whole checkpoints make superfluous.

    Older whole ones go, and folders older than the newest whole one that never got a manifest. The
    newest whole one always stays, as do damaged ones that carry a manifest: a person may want to look.

    Parameters
    ----------
    root
        The folder of checkpoints.
    keep
        How many whole ones stay, at least 1.
    known_whole
        Checkpoints that this process has written or verified: the newest of them is not read again.

    Returns
    -------
    tuple of Path
        What was deleted.
    """
    if keep < 1:
        raise ConfigError(f"checkpoint.keep is {keep}", hint="Keep at least one checkpoint.")
    newest: Path | None = None
    whole = 0
    superfluous: list[Path] = []
    for path in _candidates(root):
        if newest is None:
            # Nothing older may go before one checkpoint is known to be whole to the last byte.
            if verify(path, contents=path not in known_whole).whole:
                newest, whole = path, 1
        elif verify(path, contents=False).whole:
            whole += 1
            if whole > keep:
                superfluous.append(path)
        elif not (path / MANIFEST_NAME).exists() or ".partial-" in path.name:
            superfluous.append(path)
    for path in superfluous:
        _remove(path)
    return tuple(superfluous)


def model_differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """One line per model argument in which a checkpoint and the configuration differ."""
    return tuple(
        f"{name}: checkpoint has {saved.get(name)!r}, train.yaml has {wanted.get(name)!r}"
        for name in sorted({*saved, *wanted})
        if saved.get(name) != wanted.get(name)
    )


def check_model(manifest: Manifest, model: Mapping[str, Any], *, where: str) -> None:
    """Refuse a checkpoint of another model.

    Parameters
    ----------
    manifest
        Its `common["model"]` holds the arguments that the model was saved with.
    model
        The arguments that decide names and shapes of the state, as given to `checkpoint.begin_save`.
    where
        The checkpoint's path, for the message.

    Raises
    ------
    ConfigError
        Naming every argument that differs.
    """
    differences = model_differences(manifest.common.get("model", {}), model)
    if differences:
        raise ConfigError(
            f"the checkpoint holds another model ({'; '.join(differences)})",
            where=where,
            hint="Give the model the saved arguments, or set another checkpoint.dir.",
        )


def _own_checksum(unsigned: Manifest) -> str:
    digest = new_digest()
    digest.update(msgspec.json.encode(unsigned, order="sorted"))
    return digest.hexdigest()


def _file_problems(directory: Path, files: Sequence[WrittenFile], *, contents: bool) -> Iterator[str]:
    """What is wrong with the files, cheap checks of all of them first."""
    for file in files:
        if Path(file.name).name != file.name:
            yield f"{file.name}: not a plain file name"
            continue
        try:
            size = (directory / file.name).stat().st_size
        except FileNotFoundError:
            yield f"{file.name}: missing"
        except OSError as error:
            yield f"{file.name}: cannot be read: {error}"
        else:
            if size < file.bytes:
                yield f"{file.name}: truncated, {size} bytes found, {file.bytes} expected"
            elif size > file.bytes:
                yield f"{file.name}: too long, {size} bytes found, {file.bytes} expected"
    if contents:
        with ThreadPoolExecutor(max_workers=_READERS) as pool:
            yield from filter(None, pool.map(lambda file: content_problem(directory, file), files))


def content_problem(directory: Path, file: WrittenFile) -> str:
    """What is wrong with one file's content; empty when it is the one that was written."""
    try:
        found = describe_file(directory / file.name)
    except OSError as error:
        return f"{file.name}: cannot be read: {error}"
    if found.bytes != file.bytes:
        return f"{file.name}: truncated, {found.bytes} bytes found, {file.bytes} expected"
    if found.checksum != file.checksum:
        return f"{file.name}: checksum differs, the file was damaged after it was written"
    return ""


def _candidates(root: Path) -> list[Path]:
    """Folders under `root` that are named like checkpoints, newest first, whole names before partial ones."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnicronError(
            f"the checkpoint folder cannot be listed: {error}", where=str(root), hint="Check checkpoint.dir."
        ) from error
    found: list[tuple[int, bool, str]] = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            found.append((int(match["iteration"]), match["partial"] is None, name))
    return [root / name for _, _, name in sorted(found, reverse=True)]


def _remove(path: Path) -> None:
    """Delete a checkpoint; interrupted half-way it is already no longer one."""
    match = _NAME.fullmatch(path.name)
    if match is not None and not match["partial"]:
        doomed = path.with_name(f"{path.name}.partial-deleted")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        path = doomed
    shutil.rmtree(path, ignore_errors=True)

"""Files of a checkpoint: private to the user, and their checksums known from what was meant to be written."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

from unicron_hpc.runtime.manifest import WrittenFile, new_digest


class _HashingStream(io.RawIOBase):
    """A file that is only appended to, and knows the checksum of what it was given."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self.digest = new_digest()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        count = self._file.write(data)
        self.size += count
        return count

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        # Torch asks for it to fsync, without flushing first.
        self._file.flush()
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()


class HashingFileSystem(FileSystem):
    """Torch's file system, private to the user, that notes what was written."""

    def __init__(self) -> None:
        self.written: list[WrittenFile] = []

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            with super().create_stream(path, mode) as plain:
                yield plain
            return
        stream = _HashingStream(Path(path))
        try:
            yield stream
        finally:
            stream.close()
        self.written.append(WrittenFile(Path(path).name, stream.size, stream.digest.hexdigest()))


def write_file(path: Path, content: bytes) -> WrittenFile:
    """Write and sync a small file."""
    files = HashingFileSystem()
    with files.create_stream(path, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return files.written[0]


def sync_file(path: Path) -> None:
    """Make the content of `path` survive a power cut."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())

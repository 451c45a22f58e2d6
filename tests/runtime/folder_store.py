"""A store for tests: keys are files in a folder, and waits end when the epoch is cut."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path


class FolderStore:
    """Answers `ControlStore`'s questions, as the coordinator does in a real run."""

    def __init__(self, folder: Path, over: Callable[[], bool]) -> None:
        self._folder = folder
        self._over = over
        folder.mkdir(exist_ok=True)

    def ask(self, operation: str, keys: tuple[str, ...], value: bytes) -> bytes:
        paths = [self._folder / key.replace("/", "|") for key in keys]
        if operation == "set":
            self._write(paths[0], value)
            return b""
        if operation == "add":
            with (self._folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                count = int(paths[0].read_bytes() or b"0") if paths[0].exists() else 0
                self._write(paths[0], str(count + int(value)).encode())
                return str(count + int(value)).encode()
        if operation == "check":
            return b"1" if all(path.exists() for path in paths) else b"0"
        assert operation == "get", operation
        while not all(path.exists() for path in paths):
            if self._over():
                raise RuntimeError("the epoch is over")
            time.sleep(0.001)
        return paths[0].read_bytes()

    @staticmethod
    def _write(path: Path, value: bytes) -> None:
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_bytes(value)
        draft.rename(path)

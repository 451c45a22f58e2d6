"""What makes detection hard: cores taken by others, and a disk that is slow to write."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SPIN = "while True: pass"
#: Writes and syncs 64 MiB over and over; whoever else syncs to that disk waits in between.
_WRITE = """
import os, sys
piece = os.urandom(1 << 20)
while True:
    with open(sys.argv[1], "wb", buffering=0) as file:
        for _ in range(64):
            file.write(piece)
        os.fsync(file.fileno())
"""


@contextlib.contextmanager
def busy_cores(processes: int) -> Iterator[None]:
    """Keep that many processes of ordinary priority busy inside the block."""
    with _running([[sys.executable, "-S", "-c", _SPIN]] * processes):
        yield


@contextlib.contextmanager
def slow_disk(near: Path) -> Iterator[None]:
    """Write to the disk of a folder without pause inside the block."""
    with tempfile.NamedTemporaryFile(prefix="unicron-stress-", dir=near) as file:
        command = [sys.executable, "-S", "-c", _WRITE, file.name]
        with _running([command]):
            yield


@contextlib.contextmanager
def _running(commands: list[list[str]]) -> Iterator[None]:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()

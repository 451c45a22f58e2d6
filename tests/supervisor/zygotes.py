"""A running zygote with light ranks, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from unicron_hpc.supervisor.zygote_client import Zygote

ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36


class Running:
    """A zygote and an event for each time that it became warm."""

    def __init__(self, folder: Path, module: str = "tests.supervisor.light_zygote") -> None:
        self.warm = asyncio.Event()
        self.log = folder / "zygote.log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.zygote = Zygote(self.log, environment, self.warm.set, module=module)

    @property
    def pid(self) -> int:
        process = self.zygote._process
        assert process is not None
        return process.pid


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    """Started and warm; closed at the end."""
    one = Running(folder)
    one.zygote.start()
    try:
        await one.warm.wait()
        yield one
    finally:
        one.zygote.close()


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Be the reaper of orphaned descendants, as the agent is."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def ended(pid: int) -> bool:
    """Whether a process is gone, or at most waits for somebody to read its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def gone(pid: int) -> bool:
    """Whether nothing at all is left of a process."""
    return not Path(f"/proc/{pid}").exists()

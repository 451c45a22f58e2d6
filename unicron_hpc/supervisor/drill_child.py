"""Faults that outlive their maker: `python -m unicron_hpc.supervisor.drill_child ORDER-AS-JSON`.

Who stops or kills an agent cannot be that agent. It starts this process, in a session of its own, which makes
the fault, notes its moment, and takes it back when its time is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from unicron_hpc.supervisor import drill_notes

_PR_SET_PDEATHSIG = 1
#: Busy processes on the rank's core: it keeps a fifth of it. Fewer would make no difference where nodes share
#: one machine's cores, since the other ranks crowd on the other cores.
BURNERS = 4
#: The disk is filled in pieces of at most this many bytes.
_PIECE = 64 * 2**20


class Task(msgspec.Struct, frozen=True):
    """What to do.

    Attributes
    ----------
    run_folder, order, name, node
        For the note.
    pid
        The process that it is about: a rank, or the agent.
    family
        Whether all descendants of `pid` are meant, too.
    seconds
        How long it lasts; 0 for no end.
    amount
        `disk-full`: bytes to be left free.
    """

    run_folder: str
    order: str
    name: str
    node: str
    pid: int
    family: bool
    seconds: float
    amount: int


def family(ancestor: int) -> list[int]:
    """A process and all below it, without this one and what it started; parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name in brackets may hold anything, brackets too.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [ancestor]
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, ()))
    return found


def send_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill(task: Task, pids: list[int]) -> None:
    _injected(task, f"SIGKILL to {len(pids)} processes")
    send_all(pids, signal.SIGKILL)


def _stop(task: Task, pids: list[int]) -> None:
    _injected(task, f"SIGSTOP to {len(pids)} processes")
    send_all(pids, signal.SIGSTOP)
    if task.seconds:
        time.sleep(task.seconds)
        send_all(pids, signal.SIGCONT)
        _ended(task)


def _burn(task: Task, pids: list[int]) -> None:
    """Share the rank's core with others; all its threads are bound to it for the time."""
    usual = os.sched_getaffinity(task.pid)
    core = min(usual)
    threads = _threads(task.pid)
    before: dict[int, set[int]] = {}
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # threads come and go
            before[thread] = os.sched_getaffinity(thread)
    deadline = time.monotonic() + task.seconds
    burners = [_burner(core, deadline) for _ in range(BURNERS)]
    for thread in before:
        _bind(thread, {core})
    _injected(task, f"core {core} shared with {BURNERS} busy processes for {task.seconds:g} s")
    for pid in burners:
        os.waitpid(pid, 0)
    with contextlib.suppress(FileNotFoundError):  # the process may be gone by now
        for thread in _threads(task.pid):  # a new one has its core from who started it
            _bind(thread, before.get(thread, usual))
    _ended(task)


def _threads(pid: int) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}


def _bind(thread: int, cores: set[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)


def _burner(core: int, deadline: float) -> int:
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.sched_setaffinity(0, {core})
        while time.monotonic() < deadline:
            pass
        os._exit(0)
    return pid


def _fill(task: Task, pids: list[int]) -> None:
    """Leave `amount` bytes of the run folder's file system free."""
    _injected(task, f"file system of the run folder filled for {task.seconds:g} s")
    ballast = Path(task.run_folder) / drill_notes.FOLDER / f".ballast-{task.order}"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        size, piece = 0, _PIECE
        while piece >= os.sysconf("SC_PAGESIZE"):
            left = free_bytes(task.run_folder) - task.amount
            if left < piece:
                piece //= 2
                continue
            try:
                os.posix_fallocate(descriptor, size, piece)
                size += piece
            except OSError:
                piece //= 2
        time.sleep(task.seconds)
    finally:
        os.unlink(ballast)
        os.close(descriptor)
    _ended(task)


def free_bytes(folder: str | Path) -> int:
    """What the file system of a folder has left for us."""
    told = os.statvfs(folder)
    return told.f_bavail * told.f_frsize


def _injected(task: Task, detail: str) -> None:
    drill_notes.write(Path(task.run_folder), task.order, task.name, task.node, "injected", detail)


def _ended(task: Task) -> None:
    drill_notes.write(Path(task.run_folder), task.order, task.name, task.node, "ended")


_ACTIONS: Mapping[str, Callable[[Task, list[int]], None]] = {
    "kill": _kill,
    "stop-rank": _stop,
    "stop-agent": _stop,
    "busy": _burn,
    "node-kill": _kill,
    "node-pause": _stop,
    "disk-full": _fill,
}


def main() -> None:
    """Entry point."""
    os.umask(0o077)
    task = msgspec.json.decode(sys.argv[1], type=Task)
    try:
        pids = family(task.pid) if task.family else [task.pid]
        _ACTIONS[task.name](task, pids)
    except OSError as error:
        drill_notes.write(
            Path(task.run_folder), task.order, task.name, task.node, "refused", f"could not be made: {error}"
        )
        raise


if __name__ == "__main__":
    main()

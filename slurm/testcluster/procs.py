"""Trees of processes, read from /proc: freeze them, thaw them, kill them to the last one.

A tree under a child subreaper is closed: whatever forks or is orphaned in it stays in it. So freezing until a
scan finds nobody new gives a set that can no longer change, and only then is it killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from testcluster.errors import ClusterError

#: States in which a process runs no code of its own any more.
_GONE = frozenset("ZXx")
_STOPPED = frozenset("Tt") | _GONE


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc: `start` (clock ticks since boot) tells two users of the same pid apart."""

    pid: int
    parent: int
    state: str
    start: int
    name: str


def read_process(pid: int) -> Process | None:
    """Return the process `pid`, or None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    head, _, tail = text.rpartition(")")  # the name may itself hold spaces and brackets
    fields = tail.split()
    return Process(pid, int(fields[1]), fields[0], int(fields[19]), head.partition("(")[2])


def is_alive(pid: int, start: int) -> bool:
    """Tell whether the process that had `pid` and `start` still runs (a zombie does not)."""
    process = read_process(pid)
    return process is not None and process.start == start and process.state not in _GONE


def all_processes() -> dict[int, Process]:
    """Return every process of this machine that can be seen."""
    found = (read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int) -> dict[int, Process]:
    """Return the living processes below `root`, without `root` itself."""
    processes = all_processes()
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: dict[int, Process] = {}
    todo = list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        if pid not in found:
            found[pid] = processes[pid]
            todo.extend(children.get(pid, ()))
    return {pid: process for pid, process in found.items() if process.state not in _GONE}


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def freeze(find: Callable[[], dict[int, Process]], *, seconds: float = 10.0) -> dict[int, Process]:
    """Stop every process that `find` returns, until a scan finds all of them stopped and nobody new.

    Returns
    -------
    dict
        The frozen processes. One stuck in the kernel (state D) may be among them, still unstopped when the
        time is up; it runs no code while it is stuck, and the signal is already pending.
    """
    deadline = time.monotonic() + seconds
    known: set[tuple[int, int]] = set()
    while True:
        found = find()
        now = {(process.pid, process.start) for process in found.values()}
        fresh = [process for process in found.values() if (process.pid, process.start) not in known]
        send(fresh, signal.SIGSTOP)
        if not fresh and all(process.state in _STOPPED for process in found.values()):
            return found
        if time.monotonic() > deadline:
            if not fresh and all(
                process.state in _STOPPED or process.state == "D" for process in found.values()
            ):
                return found
            names = ", ".join(f"{process.name} ({process.pid})" for process in found.values())
            raise ClusterError(f"could not stop within {seconds:g} s: {names}")
        known |= now
        time.sleep(0.005)


def thaw(find: Callable[[], dict[int, Process]]) -> None:
    """Let every stopped process that `find` returns go on."""
    send(find().values(), signal.SIGCONT)


def kill(find: Callable[[], dict[int, Process]], *, seconds: float = 10.0) -> int:
    """Freeze, then kill what `find` returns, until it returns nothing; return how many there were."""
    deadline = time.monotonic() + seconds
    killed: set[tuple[int, int]] = set()
    while True:
        found = freeze(find, seconds=seconds)
        if not found:
            return len(killed)
        send(found.values(), signal.SIGKILL)
        killed |= {(process.pid, process.start) for process in found.values()}
        if time.monotonic() > deadline:
            names = ", ".join(f"{process.name} ({process.pid})" for process in found.values())
            raise ClusterError(f"still there {seconds:g} s after SIGKILL: {names}")
        time.sleep(0.01)


def ancestors_of_self() -> set[int]:
    """Return this process and all its ancestors: the ones that a clean-up must never kill."""
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        process = read_process(pid)
        pid = process.parent if process else 0
    return pids


def marked(variable: str, value: str) -> dict[int, Process]:
    """Return the living processes whose environment has `variable=value`, never this one or its ancestors."""
    needle = f"{variable}={value}".encode()
    own = ancestors_of_self()
    found = {}
    for pid, process in all_processes().items():
        if pid in own or process.state in _GONE:
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read().split(b"\0")
        except OSError:
            continue
        if needle in environment:
            found[pid] = process
    return found


def owned_by(uids: set[int]) -> dict[int, Process]:
    """Return the living processes of these accounts, never this one or its ancestors."""
    own = ancestors_of_self()
    found = {}
    for pid, process in all_processes().items():
        try:
            with open(f"/proc/{pid}/status") as file:
                line = next(line for line in file if line.startswith("Uid:"))
        except (OSError, StopIteration):
            continue
        if uids & {int(uid) for uid in line.split()[1:]} and pid not in own and process.state not in _GONE:
            found[pid] = process
    return found

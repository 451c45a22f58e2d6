"""What the kernel says about threads of this node's processes; every answer may be that they are gone."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

#: Place of the flags in proc(5)'s stat behind the name; PF_EXITING, PF_DUMPCORE and PF_SIGNALED of Linux.
_FLAGS, _DYING = 6, 0x4 | 0x200 | 0x400
#: Threads that are described.
MOST = 64


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds that a thread had on a processor, and was ready but waited for one, since it began."""

    cpu: float
    delay: float


def state_of(pid: int, thread: int) -> str:
    """Letter of proc(5) for a thread's state; empty if there is none."""
    text = _read(f"/proc/{pid}/task/{thread}/stat")
    # The name is in parentheses and may contain anything.
    return text.rpartition(")")[2].strip()[:1]


def times_of(pid: int, thread: int) -> ThreadTimes:
    """Its share of the processors; zeros where the kernel does not say (no schedstats, or no thread)."""
    fields = _read(f"/proc/{pid}/task/{thread}/schedstat").split()
    if len(fields) < 2:
        return ThreadTimes(0.0, 0.0)
    return ThreadTimes(int(fields[0]) / 1e9, int(fields[1]) / 1e9)


def delays(pid: int) -> dict[int, float]:
    """Seconds that each thread of a process was ready but waited for a processor."""
    with contextlib.suppress(OSError):
        return {int(name): times_of(pid, int(name)).delay for name in os.listdir(f"/proc/{pid}/task")}
    return {}


def is_dying(pid: int) -> bool:
    """Whether a process has met its end and is only not gone yet: its core and its memory take time."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return len(fields) > _FLAGS and bool(int(fields[_FLAGS]) & _DYING)


def describe(pid: int) -> str:
    """Name, state and kernel function of the threads, like ones together, in one line; for people."""
    looks: Counter[str] = Counter()
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return "gone"
    for name in threads[:MOST]:
        folder = f"/proc/{pid}/task/{name}"
        kernel = _read(f"{folder}/wchan").strip("0")
        where = f" in {kernel}" if kernel else ""
        looks[f"{_read(f'{folder}/comm').strip()}: {state_of(pid, int(name))}{where}"] += 1
    return ", ".join(f"{count} x {look}" if count > 1 else look for look, count in looks.items())


def kernel_stack(pid: int, thread: int) -> str:
    """The thread's stack in the kernel; empty for an ordinary user, who may not read it."""
    return _read(f"/proc/{pid}/task/{thread}/stack")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""

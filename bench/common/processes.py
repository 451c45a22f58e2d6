"""Processes of this machine: families, stopping them for a while, and the moment at which one is gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def descendants(*ancestors: int) -> list[int]:
    """Return the pids of the ancestors and of all processes below them, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                children.setdefault(int(_fields(entry.name)[1]), []).append(int(entry.name))
    family = list(ancestors)
    for pid in family:  # grows while it is walked
        family.extend(children.get(pid, ()))
    return family


def _fields(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything and so is cut off at its end."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time that live processes have used so far, in user and system mode."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = _fields(pid)
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Deathwatch:
    """Notes when a process ends; works for any process, not only for children.

    Parameters
    ----------
    pid
        A live process.
    """

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def wait(self, seconds: float) -> float:
        """Return the unix time at which the process was seen to end.

        Raises
        ------
        TimeoutError
            When it lives on for `seconds`.
        """
        try:
            ended, _, _ = select.select([self._descriptor], [], [], seconds)
            now = time.time()
            if not ended:
                raise TimeoutError(f"a process that was to be killed lives {seconds:g} s later")
            return now
        finally:
            os.close(self._descriptor)

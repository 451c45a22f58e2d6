"""How busy the machine is with other work: figures taken on a busy one are noise."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: Cores that others may use for a measurement to count as undisturbed.
QUIET = 0.15


def foreign_load() -> float:
    """Return the processes that want a core, averaged over a minute; ask before the bench begins."""
    return os.getloadavg()[0]


def busy_words(load: float) -> list[str]:
    """Return a line of warning where the cores were taken, else nothing."""
    cores = len(os.sched_getaffinity(0))
    if load < cores / 2:
        return []
    return [f"the machine was busy with other work (load {load:.1f} on {cores} cores): expect noise"]


def busy_seconds() -> float:
    """Return the time that all cores together have worked, for anybody, since the machine came up."""
    user, nice, system, _idle, _waiting, irq, softirq, steal, *_ = (
        int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def wait_quiet(patience: float, sample: float = 0.5) -> float:
    """Wait until others leave the cores alone, while nothing of ours runs; return the seconds that took.

    Parameters
    ----------
    patience
        Longest wait, in seconds; 0 looks once.
    sample
        How long is looked each time, in seconds.
    """
    begun = time.monotonic()
    while True:
        before = busy_seconds()
        time.sleep(sample)
        waited = time.monotonic() - begun
        if (busy_seconds() - before) / sample <= QUIET or waited >= patience:
            return waited

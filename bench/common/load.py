"""How busy the machine is with other work: figures taken on a busy one are noise."""

from __future__ import annotations

import os


def foreign_load() -> float:
    """Return the processes that want a core, averaged over a minute; ask before the bench begins."""
    return os.getloadavg()[0]


def busy_words(load: float) -> list[str]:
    """Return a line of warning where the cores were taken, else nothing."""
    cores = len(os.sched_getaffinity(0))
    if load < cores / 2:
        return []
    return [f"the machine was busy with other work (load {load:.1f} on {cores} cores): expect noise"]

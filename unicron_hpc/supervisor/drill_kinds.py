"""The drills: what each does, to whom, and what must come of it. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

#: Numbers of orders: what may be part of a file name.
ORDER = re.compile(r"[0-9a-f]{8,32}")


class Site(enum.Enum):
    """Where the fault is made."""

    RANK = "by the rank itself"
    RANK_OUTSIDE = "by the agent, to a rank"
    NODE = "by the agent, to the node"
    CLUSTER = "by a command of the site"


class Expected(enum.Enum):
    """What must come of a drill."""

    RANK_NAMED = "the rank is named, training goes on"
    NODE_NAMED = "the node is named, training goes on"
    SLOW_NAMED = "the node is named as slow, training goes on"
    NODE_OR_NOBODY = "nobody else than the node is blamed, training goes on"
    NOBODY_NAMED = "nobody is blamed, training goes on"
    JOB_FAILS = "the job ends FAILED with this rank's traceback; no spare is used"
    JOB_FAILS_SAYING_WHY = "the job ends FAILED and says why; no spare is used"


@dataclass(frozen=True, slots=True)
class Kind:
    """One drill.

    Attributes
    ----------
    sentence
        What it does, for people.
    site, expected
        Where it is made, and what must come of it.
    seconds
        How long it lasts by default; 0 where it has no end of its own.
    """

    sentence: str
    site: Site
    expected: Expected
    seconds: float = 0.0

    @property
    def of_rank(self) -> bool:
        """Whether it is about one rank."""
        return self.site in (Site.RANK, Site.RANK_OUTSIDE)


_R, _O, _N, _C = Site.RANK, Site.RANK_OUTSIDE, Site.NODE, Site.CLUSTER

KINDS: Mapping[str, Kind] = {
    "kill": Kind("SIGKILL to a rank.", _O, Expected.RANK_NAMED),
    "segfault": Kind("A rank reads address 0 in the middle of a forward pass.", _R, Expected.RANK_NAMED),
    "abort": Kind("A rank calls abort() in the middle of a forward pass.", _R, Expected.RANK_NAMED),
    "exception-forward": Kind(
        "A rank raises an exception in a forward pass (--error says which).", _R, Expected.RANK_NAMED
    ),
    "exception-data": Kind(
        "One rank's data loader raises an exception (--error says which).", _R, Expected.RANK_NAMED
    ),
    "stop-rank": Kind("SIGSTOP to a rank; SIGCONT after --seconds, if given.", _O, Expected.RANK_NAMED),
    "stop-agent": Kind(
        "SIGSTOP to the agent of a node; SIGCONT after --seconds.", _N, Expected.NODE_NAMED, 20.0
    ),
    "gil": Kind(
        "A rank computes in C without ever giving up Python's lock: no thread of it can answer.",
        _R,
        Expected.RANK_NAMED,
    ),
    "busy": Kind(
        "Other processes take most of one rank's core for --seconds.", _O, Expected.SLOW_NAMED, 90.0
    ),
    "oom": Kind(
        "A rank takes memory until it is refused: killed by the kernel under --cgroup, else a MemoryError.",
        _R,
        Expected.JOB_FAILS,
    ),
    "nan": Kind("A rank's forward pass yields NaN.", _R, Expected.JOB_FAILS_SAYING_WHY),
    "node-kill": Kind(
        "SIGKILL to all our processes on a node at once, its agent too.", _N, Expected.NODE_NAMED
    ),
    "node-pause": Kind(
        "SIGSTOP to all our processes on a node, its agent too; SIGCONT after --seconds.",
        _N,
        Expected.NODE_NAMED,
        20.0,
    ),
    "node-cut": Kind("A node's network is taken away by the command of --with.", _C, Expected.NODE_NAMED),
    "link-loss": Kind(
        "A node's network loses packets (30 %), by the command of --with.", _C, Expected.NODE_OR_NOBODY, 20.0
    ),
    "disk-full": Kind(
        "The run folder's file system is filled up to --leave bytes for --seconds.",
        _N,
        Expected.NOBODY_NAMED,
        10.0,
    ),
}

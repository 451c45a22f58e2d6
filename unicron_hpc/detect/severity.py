"""The table from an error to its severity and what is done about it (Unicron's four methods)."""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.IntEnum):
    """How much has to be replaced. A failed action raises an incident by one level."""

    SEV3 = 3  # try again in place
    SEV2 = 2  # a new process
    SEV1 = 1  # the node is out
    PROGRAM = 0  # the user's program or settings: no retry helps, no node is to blame
    INFO = 4  # nothing has failed: a warning, or a word about an end that somebody wanted


class Blame(enum.StrEnum):
    """Where the cause of an error lies; only a node's own errors have it drained."""

    NODE = "node"
    PROCESS = "process"
    NETWORK = "network"
    PROGRAM = "program"
    NOBODY = "nobody"  # cancelled, requeued, a mere warning


class Method(enum.StrEnum):
    """Which of Unicron's detection methods found a fault."""

    NODE_HEALTH = "node health monitoring"
    PROCESS = "process supervision"
    EXCEPTION = "exception propagation"
    STATISTICS = "online statistical monitoring"


class Finding(msgspec.Struct, frozen=True):
    """What one piece of evidence means.

    Attributes
    ----------
    error
        Name of the error, one of a small vocabulary.
    severity
        First level of the incident.
    blame
        Where the cause lies.
    collateral
        The fault is elsewhere: this rank only saw a peer go away.
    """

    error: str
    severity: Severity
    blame: Blame = Blame.PROCESS
    collateral: bool = False


LOST_CONNECTION = Finding("lost connection", Severity.SEV1, Blame.NODE)
TASK_HANG = Finding("task hang", Severity.SEV3, Blame.NETWORK)
NOT_ANSWERING = Finding("rank does not answer", Severity.SEV2)
#: By itself no failure; whom others wait for it accuses.
SLOW = Finding("rank is slow", Severity.INFO)
WANTED_END = Finding("ended on request", Severity.INFO, Blame.NOBODY, collateral=True)
#: Errors of the table that tell of such ends: what fails after them without saying why is their consequence.
WANTED_ENDS = frozenset({"job requeued", "job preempted", "time limit reached"})

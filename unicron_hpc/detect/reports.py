"""What attribution is told, and what it answers."""

from __future__ import annotations

import enum

import msgspec

from unicron_hpc.detect.severity import Finding


class Sign(enum.StrEnum):
    """What kind of thing a report tells."""

    FAULT = "fault"  # something failed; `finding` says what
    DEATH = "death"  # a process ended by a signal other than one that asks it to end
    SILENT = "silent"  # no progress or no answer
    SECTION = "section"  # the rank said that it would be busy
    SECTION_OVER = "section over"
    MEMORY_KILL = "memory kill"  # the kernel killed something on the node for want of memory
    RESTART = "restart"  # an earlier fault that was mended by a new process
    ENDED = "ended"  # told to end, or ended because others did
    ALIVE = "alive"  # heard of again, or goes on


class Report(msgspec.Struct, frozen=True):
    """One thing that somebody reported.

    Attributes
    ----------
    time
        Unix time at which it happened, as far as the reporter knows.
    sign
        What kind of thing.
    rank, node
        Where; None or empty where unknown.
    finding
        What it means; needed for FAULT and DEATH.
    vague
        It says that something failed and not what.
    arrival
        When it was heard; None for at once.
    sequence, group, operation
        Number of the collective that timed out, the process group's name, and what the collective does
        (`ALLREDUCE(1024)`).
    detail
        Words for people.
    """

    time: float
    sign: Sign
    rank: int | None = None
    node: str = ""
    finding: Finding | None = None
    vague: bool = False
    arrival: float | None = None
    sequence: int | None = None
    group: str = ""
    detail: str = ""
    operation: str = ""


class Structure(msgspec.Struct, frozen=True):
    """Which rank shares a group with which.

    Attributes
    ----------
    groups
        The pipeline, tensor and data groups as tuples of ranks.
    nodes
        Node of each rank.
    """

    groups: tuple[tuple[int, ...], ...] = ()
    nodes: dict[int, str] = {}


class Action(enum.StrEnum):
    """What the verdict asks for."""

    NOTHING = "nothing"
    RETRY = "retry in place"
    NEW_PROCESS = "new process"
    NODE_OUT = "node out"
    STOP = "stop the run"


class Verdict(msgspec.Struct, frozen=True):
    """Who is guilty and what is to be done.

    Attributes
    ----------
    suspects
        Ranks that are the cause.
    victims
        Ranks that waited for a suspect or lost it, and said so.
    collateral
        All ranks that failed because of the suspects: the victims, and those that were ended.
    suspect_nodes
        The nodes, where the blame lies with some: that of the cause first.
    finding
        The cause; None when nothing has failed.
    drain
        Whether the suspect node should be drained.
    action
        What to do.
    cause
        The report that decided; None where it was the absence of one.
    evidence
        A sentence for each report that counted, the cause first.
    """

    suspects: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    collateral: tuple[int, ...] = ()
    suspect_nodes: tuple[str, ...] = ()
    finding: Finding | None = None
    drain: bool = False
    action: Action = Action.NOTHING
    cause: Report | None = None
    evidence: tuple[str, ...] = ()

    @property
    def suspect_node(self) -> str:
        """The node of the cause, where the blame lies with a node."""
        return self.suspect_nodes[0] if self.suspect_nodes else ""

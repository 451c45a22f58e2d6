"""What a rank can be busy with, and whose fault it is when that takes too long."""

from __future__ import annotations

import enum


class WorkPhase(enum.IntEnum):
    """What a rank does right now; the numbers are those in its phase page."""

    IDLE = 0  # waits for an order
    # A transition.
    GROUPS = 1
    CHUNK = 2
    STATE = 3
    WARM_UP = 4
    # An iteration.
    DATA = 5
    FORWARD = 6
    BACKWARD = 7
    EXCHANGE = 8
    ALL_REDUCE = 9
    COMMIT = 10
    OPTIMIZER = 11
    REPORT = 12  # between two iterations
    CHECKPOINT = 13
    # More of a transition.
    RELEASE = 14  # leaves the epoch before
    MOVE = 15  # waits for state, or until it is sent
    LOAD = 16  # reads a checkpoint

    @property
    def title(self) -> str:
        """For people."""
        return self.name.lower().replace("_", "-")


#: In these a rank waits for others: who is stuck here is a victim, and the time says nothing about the rank.
WAITING = frozenset({WorkPhase.EXCHANGE, WorkPhase.ALL_REDUCE, WorkPhase.COMMIT})
#: In these a rank computes for itself: who is stuck here is stuck by itself.
OWN = frozenset(
    {WorkPhase.DATA, WorkPhase.FORWARD, WorkPhase.BACKWARD, WorkPhase.OPTIMIZER, WorkPhase.REPORT}
)
#: Work whose time is the rank's own speed.
COMPUTE = frozenset({WorkPhase.DATA, WorkPhase.FORWARD, WorkPhase.BACKWARD, WorkPhase.OPTIMIZER})
#: The part of it that grows with the rank's share of the work: what a straggler is known by.
SHARED = COMPUTE - {WorkPhase.OPTIMIZER}
#: Parts of a transition in which a rank waits for others, and in which it works for itself; the rest is disk.
TRANSITION_WAITING = frozenset({WorkPhase.GROUPS, WorkPhase.MOVE, WorkPhase.WARM_UP})
TRANSITION_OWN = frozenset({WorkPhase.RELEASE, WorkPhase.CHUNK, WorkPhase.STATE})
TRANSITION = TRANSITION_WAITING | TRANSITION_OWN | {WorkPhase.LOAD}
#: What takes as long as the disk takes.
UNLIMITED = frozenset({WorkPhase.CHECKPOINT, WorkPhase.LOAD})

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
#: Work whose time is the rank's own speed: what a straggler is known by.
COMPUTE = frozenset({WorkPhase.DATA, WorkPhase.FORWARD, WorkPhase.BACKWARD, WorkPhase.OPTIMIZER})
#: A transition has its own time limit, and every rank waits in it.
TRANSITION = frozenset({WorkPhase.GROUPS, WorkPhase.CHUNK, WorkPhase.STATE, WorkPhase.WARM_UP})

"""Whether this coordinator may decide right now; while it may not, what it hears is held back.

Three situations take the right to decide away for a while: it has just been elected and has not heard yet
what runs where, its process did not run for so long that somebody else may have been elected in the meantime,
or too few nodes are in contact.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from unicron_hpc.supervisor.election import Verdict, verdict
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import Body, Heartbeat, Join


class Standing(enum.Enum):
    """What a look at the clock says."""

    IN_OFFICE = "in office"  # may decide
    WAITING = "waiting"  # may not decide yet
    TAKING_OVER = "taking over"  # just elected, everybody has spoken: from now on it may
    CONFIRMED = "confirmed"  # a majority has spoken since the stall: from now on it may again
    DESERTED = "deserted"  # no majority came back


class Office:
    """The right to decide.

    Parameters
    ----------
    members
        The nodes of the job.
    patience
        Seconds that members have to speak to a newly elected coordinator.
    limit
        Seconds after a stall in which a majority must have spoken.
    """

    def __init__(self, members: Members, patience: float, limit: float) -> None:
        self._members = members
        self._patience = patience
        self._limit = limit
        self._stalled_at: float | None = None
        self._proof = 0
        self._echoed: set[str] = set()
        self._takeover_until: float | None = None
        self._unheard: set[str] = set()
        self._predecessor: str | None = None
        self._held_back: list[tuple[str, Body]] = []

    def succeed(self, predecessor: str | None, now: float) -> None:
        """Elected: every live member has until `patience` from now to tell what runs on its node."""
        self._predecessor = predecessor
        self._unheard = {node.name for node in self._members.alive()}
        self._takeover_until = now + self._patience

    def stalled(self, now: float, beat: int) -> None:
        """This process did not run for so long that it may have been succeeded.

        Parameters
        ----------
        beat
            Number of the next beat: only who has seen that one is known to follow us still.
        """
        self._stalled_at = now
        self._proof = beat
        self._echoed = set()

    def echoed(self, node: str, beat: int) -> None:
        """A member's heartbeat repeats a beat of ours."""
        if beat >= self._proof:
            self._echoed.add(node)

    def heard(self, node: str) -> None:
        """A member has told what runs on its node."""
        self._unheard.discard(node)

    def is_silent(self, node: str | None) -> bool:
        """Whether a member has not spoken since the election."""
        return node in self._unheard

    def hold_back(self, sender: str, body: Body, *, short: bool = False) -> bool:
        """Keep a message for later, if it asks for a decision that may not be made now.

        Parameters
        ----------
        short
            Too few nodes are in contact to decide: nothing may be written, nothing begun.
        """
        if self._stalled_at is None and not short:
            # Just elected: what members tell of themselves is just what is waited for.
            if self._takeover_until is None or isinstance(body, Heartbeat | Join):
                return False
        elif isinstance(body, Heartbeat):
            return True  # has been counted; the next one says the rest again
        self._held_back.append((sender, body))
        return True

    def release(self) -> Sequence[tuple[str, Body]]:
        """What was held back, in order."""
        held, self._held_back = self._held_back, []
        return held

    def look(self, now: float) -> Standing:
        """Judge the situation; call regularly."""
        if self._stalled_at is not None:
            alive = {node.name for node in self._members.alive()}
            if verdict(len(self._echoed & alive), len(alive)) is Verdict.WON:
                self._stalled_at = None
                return Standing.CONFIRMED
            return Standing.DESERTED if now - self._stalled_at > self._limit else Standing.WAITING
        if self._takeover_until is not None:
            if self._unheard - {self._predecessor} and now < self._takeover_until:
                return Standing.WAITING
            self._takeover_until = None
            return Standing.TAKING_OVER
        return Standing.IN_OFFICE

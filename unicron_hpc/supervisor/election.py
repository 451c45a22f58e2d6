"""Who coordinates when the coordinator is gone: votes of the last committed membership.

Pure: no sockets, no clocks; the agent feeds it and acts on what it says.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field


class Verdict(enum.Enum):
    """What the votes so far amount to."""

    WON = "won"  # more than half of the members
    TIED = "tied"  # exactly half; somebody from outside must say whether the others live
    SHORT = "short"  # fewer


def verdict(votes: int, members: int) -> Verdict:
    """Judge a count of votes.

    Parameters
    ----------
    votes
        Members that voted for the candidate, itself included.
    members
        Members of the last committed membership, the silent coordinator included: it may be alive
        behind a cut network, and two halves must never both go on.
    """
    if 2 * votes > members:
        return Verdict.WON
    return Verdict.TIED if 2 * votes == members else Verdict.SHORT


def patience(node: str, members: Sequence[str], coordinator: str, step: float) -> float:
    """Seconds that `node` waits before it stands for election, so that mostly one stands at a time.

    Members stand in their order; the silent coordinator is not counted.
    """
    others = [member for member in members if member != coordinator]
    return (others.index(node) if node in others else len(others)) * step


@dataclass(slots=True)
class Ballot:
    """One agent's memory of terms and votes.

    Attributes
    ----------
    term
        Highest term seen.
    voted_for
        Whom this agent gave its vote in `term`, if anybody.
    """

    node: str
    term: int = 1
    voted_for: str | None = None
    votes: set[str] = field(default_factory=set)

    def saw(self, term: int) -> bool:
        """Note a term seen on a message; True when it is higher than any before."""
        if term <= self.term:
            return False
        self.term = term
        self.voted_for = None
        self.votes = set()
        return True

    def stand(self) -> int:
        """Become a candidate: a new term, with one's own vote.

        Returns
        -------
        int
            The term to ask votes for.
        """
        self.saw(self.term + 1)
        self.voted_for = self.node
        self.votes = {self.node}
        return self.term

    def grant(
        self, candidate: str, term: int, *, candidate_epoch: int, own_epoch: int, leader_silent: bool
    ) -> bool:
        """Whether to vote for `candidate` in `term`.

        One vote a term; only for a candidate that knows at least as new an epoch; and only if this agent,
        too, has not heard of the coordinator, so that one deaf node cannot unseat a healthy coordinator.
        The term of a candidate that knows too little counts all the same: whoever refuses stands in a later
        one, in which that candidate can vote for him.
        """
        if term < self.term or not leader_silent:
            return False
        self.saw(term)
        if candidate_epoch < own_epoch or self.voted_for not in (None, candidate):
            return False
        self.voted_for = candidate
        return True

    def count(self, voter: str, term: int) -> int:
        """Take a granted vote in; returns how many there are in the current term."""
        if term == self.term:
            self.votes.add(voter)
        return len(self.votes)

"""One fault from its first sign to recovery: the evidence, and which piece of it is the cause."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import time as unix_time

import msgspec

from unicron_hpc.detect.severity import Blame, Finding, Method, Severity
from unicron_hpc.supervisor.rank_messages import RankAddress

#: Longest span before its arrival at which a sign counts as the incident's beginning, in seconds. What is
#: further back comes of a clock that goes wrong.
LONGEST_DELAY = 600.0
#: What of an incident goes on to a successor: pieces of evidence at most, and characters of each one's text.
CARRIED, CARRIED_TEXT = 64, 400


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sign of a fault.

    Attributes
    ----------
    finding, method
        What it means and how it was found.
    node, rank
        Where; rank None for a whole node.
    detail
        Text for people: an exception, the end of a log.
    time
        Unix time of the fault as far as it is known: of the last sign of life, of a death.
    seen
        Unix time at which the coordinator knew.
    """

    finding: Finding
    method: Method
    node: str
    rank: int | None
    detail: str
    time: float = field(default_factory=unix_time)
    seen: float = field(default_factory=unix_time)

    @property
    def delay(self) -> float:
        """Seconds until the coordinator knew of it; never negative, whatever the nodes' clocks say."""
        return min(max(0.0, self.seen - self.time), LONGEST_DELAY)

    @property
    def brief(self) -> str:
        """Place and error in a few words."""
        return f"rank {self.rank}: {self.finding.error}" if self.rank is not None else self.finding.error

    def carried(self) -> Evidence:
        """The same with the part of its text that says most: of an exception the end."""
        text = self.detail
        short = text[-CARRIED_TEXT:] if self.method is Method.EXCEPTION else text[:CARRIED_TEXT]
        return replace(self, detail=short)


class OpenIncident(msgspec.Struct, frozen=True):
    """What a successor must know of an incident that is not over; fields as in `Incident`."""

    number: int
    iteration: int
    attempts: int
    opened: float
    evidence: tuple[Evidence, ...]
    gone: tuple[tuple[RankAddress, int | None], ...]
    on_trial: tuple[tuple[str, Evidence], ...]
    counted: bool = False


@dataclass(slots=True)
class Incident:
    """All evidence since the first sign, until the task commits an iteration again.

    Attributes
    ----------
    number
        Counts from 1 in a run.
    iteration
        Committed iterations when it began.
    attempts
        Transitions that were begun for it.
    opened
        Unix time of the first sign.
    gone
        The processes that ended or were given up in it, with their ranks: what comes to light later about
        their ends belongs here.
    on_trial
        Nodes that are out because new processes did not help there, with the evidence.
    counted
        It is in the history of its node already: it was closed before.
    running
        Unix time at which the last transition was complete; None before.
    closed
        Unix time of the next commit; None while it is open.
    """

    number: int
    iteration: int
    evidence: list[Evidence] = field(default_factory=list)
    attempts: int = 0
    opened: float = field(default_factory=unix_time)
    gone: dict[RankAddress, int | None] = field(default_factory=dict)
    on_trial: dict[str, Evidence] = field(default_factory=dict)
    counted: bool = False
    running: float | None = None
    closed: float | None = None

    @classmethod
    def adopt(cls, known: OpenIncident) -> Incident:
        """Go on with what a predecessor knew."""
        return cls(
            known.number,
            known.iteration,
            evidence=list(known.evidence),
            attempts=known.attempts,
            opened=known.opened,
            gone=dict(known.gone),
            on_trial=dict(known.on_trial),
            counted=known.counted,
        )

    def carried(self) -> OpenIncident:
        """What a successor must know. Complaints decide nothing: one, where nothing else is known."""
        direct = [e for e in self.evidence if not e.finding.collateral]
        return OpenIncident(
            number=self.number,
            iteration=self.iteration,
            attempts=self.attempts,
            opened=self.opened,
            evidence=tuple(e.carried() for e in (direct or self.evidence[:1])[:CARRIED]),
            gone=tuple(self.gone.items()),
            on_trial=tuple((node, evidence.carried()) for node, evidence in self.on_trial.items()),
            counted=self.counted,
        )

    def add(self, evidence: Evidence) -> bool:
        """Take a piece of evidence; False where it is known."""
        if evidence in self.evidence:
            return False
        self.evidence.append(evidence)
        self.opened = min(self.opened, evidence.seen - evidence.delay)
        return True

    def had(self, evidence: Evidence) -> bool:
        """Whether news of a whole node that come after its end are of what happened there before."""
        before = self.closed is not None and evidence.time <= self.closed
        return before and evidence.rank is None and any(e.node == evidence.node for e in self.evidence)

    def cause(self) -> Evidence | None:
        """The likeliest cause: direct evidence before collateral, the program's own fault before all, the
        most severe next, then the earliest."""
        if not self.evidence:
            return None
        return min(self.evidence, key=lambda e: (e.finding.collateral, e.finding.severity, e.time))

    def program_fault(self) -> Evidence | None:
        """Evidence that the user's program is at fault, the earliest, if there is any."""
        own = [e for e in self.evidence if e.finding.severity is Severity.PROGRAM]
        return min(own, key=lambda e: e.time) if own else None

    def failed_nodes(self) -> set[str]:
        """Nodes on which processes failed by themselves."""
        return {
            e.node
            for e in self.evidence
            if e.node
            and not e.finding.collateral
            and e.finding.severity is Severity.SEV2
            and e.finding.blame in (Blame.PROCESS, Blame.NODE)
        }

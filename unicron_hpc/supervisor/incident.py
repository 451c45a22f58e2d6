"""One fault from its first sign to recovery: the evidence, and which piece of it is the cause."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from unicron_hpc.detect.severity import Finding, Method, Severity


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
        Unix time at which it was seen.
    """

    finding: Finding
    method: Method
    node: str
    rank: int | None
    detail: str
    time: float = field(default_factory=time.time)


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
    """

    number: int
    iteration: int
    evidence: list[Evidence] = field(default_factory=list)
    attempts: int = 0
    opened: float = field(default_factory=time.time)

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

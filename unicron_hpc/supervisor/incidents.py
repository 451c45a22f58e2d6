"""The incidents of one task: opened, told to the journal, given up or closed."""

from __future__ import annotations

import logging
import time

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.severity import Finding, Severity
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.incident import Evidence, Incident
from unicron_hpc.supervisor.task_state import TaskState

log = logging.getLogger(__name__)


class Incidents:
    """At most one is open at a time: whatever happens before the next commit belongs to it.

    Parameters
    ----------
    state
        The task; holds the open incident.
    hub
        Numbers incidents, and has the journal.
    recovery
        The budget of attempts.
    """

    def __init__(self, state: TaskState, hub: Hub, recovery: RecoverySettings) -> None:
        self._state = state
        self._hub = hub
        self._recovery = recovery
        self._settled = 0

    def add(self, evidence: Evidence) -> None:
        """Add to the open incident, or open one."""
        state = self._state
        if state.incident is None:
            state.incident = Incident(self._hub.next_incident(), self._hub.commits.last(state.name))
        state.incident.evidence.append(evidence)
        if not evidence.finding.collateral:
            self._note(evidence)

    def level(self, finding: Finding, node: str, rank: int | None) -> Severity:
        """The severity to act on: one level up where the same action has failed too often by now."""
        incident = self._state.incident
        before = 0
        if incident is not None:
            same = (finding.error, node, rank)
            before = sum(1 for e in incident.evidence if (e.finding.error, e.node, e.rank) == same)
        if (
            finding.severity is Severity.SEV3
            and not finding.collateral
            and before > self._recovery.max_retries
        ):
            return Severity.SEV2
        return finding.severity

    def settle(self) -> None:
        """Everybody has been heard. If nobody knows why a connection broke, that is the fault itself.

        It is told once, however many attempts the incident takes.
        """
        incident = self._state.incident
        if incident is None or not incident.evidence or incident.number == self._settled:
            return
        if all(evidence.finding.collateral for evidence in incident.evidence):
            self._settled = incident.number
            self._note(incident.evidence[0])

    def try_again(self) -> tuple[str, str] | None:
        """Count an attempt to recover.

        Returns
        -------
        tuple or None
            Cause and detail of the failure, when there have been too many.
        """
        incident = self._state.incident
        if incident is None:
            return None
        incident.attempts += 1
        # `max_retries` + 1 on each of two levels; every further node or rank that fails counts anew.
        places = {(e.node, e.rank) for e in incident.evidence if not e.finding.collateral}
        if incident.attempts <= (self._recovery.max_retries + 1) * 2 + len(places):
            return None
        cause = incident.cause()
        return (
            f"task {self._state.name} committed no iteration in {incident.attempts - 1} transitions;"
            f" first cause: {cause.finding.error if cause else 'unknown'}",
            cause.detail if cause else "",
        )

    def close(self, iteration: int) -> None:
        """An iteration was committed: the incident is over."""
        incident, self._state.incident = self._state.incident, None
        if incident:
            self._hub.journal.write(
                "incident_closed",
                self._state.epoch,
                task=self._state.name,
                incident=incident.number,
                iteration=iteration,
                seconds=time.time() - incident.opened,
                attempts=incident.attempts,
            )

    def _note(self, evidence: Evidence) -> None:
        state, finding = self._state, evidence.finding
        number = state.incident.number if state.incident else 0
        log.warning(
            "incident %d: %s on %s (rank %s)",
            number,
            finding.error,
            evidence.node or state.name,
            evidence.rank,
        )
        self._hub.journal.write(
            "fault_detected",
            state.epoch,
            task=state.name,
            incident=number,
            node=evidence.node,
            rank=evidence.rank,
            error=finding.error,
            method=evidence.method.value,
            severity=finding.severity.name,
            evidence=evidence.detail[-2000:],
            fault_time=evidence.time,
        )

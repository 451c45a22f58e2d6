"""The incidents of one task: opened, judged, told to the journal, given up or closed."""

from __future__ import annotations

import logging
import time

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.handling import Action, Case, Decision, Spent, decide, exhausted
from unicron_hpc.detect.reports import Verdict
from unicron_hpc.detect.severity import Severity
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.incident import Evidence, Incident
from unicron_hpc.supervisor.task_state import TaskState
from unicron_hpc.supervisor.verdicts import Verdicts

log = logging.getLogger(__name__)

#: Seconds after the end of an incident in which a report about what happened before still belongs to it.
LATE = 10.0
#: Longest text of evidence in the journal, in characters.
LONGEST = 2000


class Incidents:
    """At most one is open at a time: whatever happens before the next commit belongs to it.

    Parameters
    ----------
    state
        The task; holds the open incident.
    hub
        Numbers incidents, has the journal, and knows the nodes' history.
    recovery
        The budgets.
    """

    def __init__(self, state: TaskState, hub: Hub, recovery: RecoverySettings) -> None:
        self._state = state
        self._hub = hub
        self._recovery = recovery
        self._last: Incident | None = None
        self._settled = 0
        self._verdicts = Verdicts(state.name, hub.journal)
        self._told: set[tuple[int, int, str, str, int | None]] = set()

    def add(self, evidence: Evidence) -> Incident:
        """Add to the open incident, or open one."""
        state = self._state
        recent = self.recent
        if state.incident is None and recent is not None and recent.had(evidence):
            self.reopen(recent)
        if state.incident is None:
            state.incident = Incident(self._hub.next_incident(), self._hub.commits.last(state.name))
        self._take(state.incident, evidence)
        return state.incident

    def add_late(self, evidence: Evidence) -> Incident | None:
        """Add a report about an epoch that is over to the incident that it belongs to, if there is one."""
        incident = self.recent
        if incident is not None:
            self._take(incident, evidence)
            if self._verdicts.told(incident):
                self.judge(incident)
        return incident

    @property
    def recent(self) -> Incident | None:
        """The open incident, or one that ended a moment ago."""
        last = self._last
        if self._state.incident is not None or last is None or last.closed is None:
            return self._state.incident
        return last if time.time() - last.closed <= LATE else None

    def reopen(self, incident: Incident) -> None:
        """What was done about it was not enough: it goes on as the open incident."""
        if self._state.incident is None:
            incident.closed, incident.running, incident.opened = None, None, time.time()
            self._state.incident = incident

    def decide(self, incident: Incident, evidence: Evidence, restarts: int) -> Decision:
        """What is done about a piece of evidence; the journal is told."""
        decision = self.consider(incident, evidence, restarts)
        self.tell_action(incident, evidence, decision)
        return decision

    def consider(self, incident: Incident, evidence: Evidence, restarts: int) -> Decision:
        """What the rules say about a piece of evidence, done or not.

        Parameters
        ----------
        incident
            That has it.
        restarts
            Processes that its seat has used up since the last commit, this one included.
        """
        finding, node = evidence.finding, evidence.node
        same = (finding.error, node, evidence.rank)
        before = sum((e.finding.error, e.node, e.rank) == same for e in incident.evidence) - 1
        alone = incident.failed_nodes() == {node} and not incident.counted
        since = time.time() - self._recovery.fault_window
        case = Case(
            finding,
            repeats=before,
            restarts=restarts,
            faults_on_node=self._hub.history.count(node, since) + alone,
            elsewhere=any(tried.finding.error == finding.error for tried in incident.on_trial.values()),
        )
        decision = decide(case, self._recovery)
        if decision.action is Action.NODE_ON_TRIAL:
            incident.on_trial[node] = evidence
        return decision

    def settle(self) -> None:
        """Everybody has been heard. If nobody knows why a connection broke, that is the fault itself.

        It is told once, however many attempts the incident takes.
        """
        incident = self._state.incident
        if incident is None or not incident.evidence:
            return
        if incident.number != self._settled and all(
            evidence.finding.collateral for evidence in incident.evidence
        ):
            self._settled = incident.number
            self._note(incident, incident.evidence[0])
        self.judge(incident)

    def judge(self, incident: Incident) -> Verdict:
        """Who is guilty by what is known now; the journal is told where that has changed."""
        return self._verdicts.tell(incident, self._state.layout, self._state.epoch)

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
        places = {(e.node, e.rank) for e in incident.evidence if not e.finding.collateral}
        spent = Spent(transitions=incident.attempts, places=len(places))
        if exhausted(spent, self._recovery) is None:
            return None
        cause = incident.cause()
        return (
            f"task {self._state.name} committed no iteration in {incident.attempts - 1} transitions;"
            f" first cause: {cause.finding.error if cause else 'unknown'}",
            cause.detail if cause else "",
        )

    def epoch_runs(self) -> None:
        """A transition is complete; the next commit closes the incident."""
        if self._state.incident is not None:
            self._state.incident.running = time.time()

    def close(self, iteration: int) -> None:
        """An iteration was committed: the incident is over."""
        incident, self._state.incident = self._state.incident, None
        if incident is None:
            return
        now = time.time()
        incident.closed, self._last = now, incident
        self.judge(incident)
        cause, failed = incident.cause(), incident.failed_nodes()
        failed_node = next(iter(failed)) if len(failed) == 1 else ""
        if failed_node and not incident.counted:
            incident.counted = True
            self._hub.history.add(failed_node, now)
        running = incident.running or now
        self._hub.journal.write(
            "incident_closed",
            self._state.epoch,
            task=self._state.name,
            incident=incident.number,
            iteration=iteration,
            seconds=now - incident.opened,
            detection_seconds=cause.delay if cause else None,
            recovery_seconds=running - incident.opened,
            commit_seconds=now - running,
            attempts=incident.attempts,
            failed_node=failed_node,
        )
        for node, evidence in incident.on_trial.items():
            self._hub.node_was_bad(node, evidence)
        self._hub.changed()  # a successor must not go on with what is over

    def _take(self, incident: Incident, evidence: Evidence) -> None:
        if incident.add(evidence) and not evidence.finding.collateral:
            self._note(incident, evidence)

    def _note(self, incident: Incident, evidence: Evidence) -> None:
        state, finding = self._state, evidence.finding
        log.warning("incident %d: %s %s", incident.number, finding.error, _where(evidence, state.name))
        self._hub.journal.write(
            "fault_detected",
            state.epoch,
            task=state.name,
            incident=incident.number,
            node=evidence.node,
            rank=evidence.rank,
            error=finding.error,
            method=evidence.method.value,
            severity=finding.severity.name,
            blame=finding.blame.value,
            evidence=evidence.detail[-LONGEST:],
            fault_time=evidence.time,
            detection_seconds=evidence.delay,
        )

    def tell_action(self, incident: Incident, evidence: Evidence, decision: Decision) -> None:
        """Once for each place and attempt; for what only saw a peer go once for all of them."""
        many = decision.severity is Severity.SEV3
        place = ("", None) if many else (evidence.node, evidence.rank)
        told = (incident.number, incident.attempts, decision.rule, *place)
        if told in self._told:
            return
        self._told.add(told)
        self._hub.journal.write(
            "action_chosen",
            self._state.epoch,
            task=self._state.name,
            incident=incident.number,
            node=evidence.node,
            rank=evidence.rank,
            error=evidence.finding.error,
            action=decision.action.value,
            severity=decision.severity.name,
            rule=decision.rule,
            reason=decision.reason,
        )


def _where(evidence: Evidence, task: str) -> str:
    """For people: a rank, a whole node, or all of a task."""
    if evidence.rank is not None:
        return f"on {evidence.node or task} (rank {evidence.rank})"
    return f"on {evidence.node} (node)" if evidence.node else f"in task {task}"

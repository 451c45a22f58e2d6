"""What is done about evidence against a task's ranks and nodes."""

from __future__ import annotations

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.exits import describe_end, explain_exit
from unicron_hpc.detect.severity import Method, Severity
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.incidents import Incidents
from unicron_hpc.supervisor.messages import Noticed, RankExited
from unicron_hpc.supervisor.rank_messages import RankFault
from unicron_hpc.supervisor.seats import RankProcessState
from unicron_hpc.supervisor.task_state import TaskState
from unicron_hpc.supervisor.transitions import Transitions


class Faults:
    """Judges evidence and has something done about it.

    Parameters
    ----------
    state, hub, recovery, incidents, transitions
        The task's.
    """

    def __init__(
        self,
        state: TaskState,
        hub: Hub,
        recovery: RecoverySettings,
        incidents: Incidents,
        transitions: Transitions,
    ) -> None:
        self._state = state
        self._hub = hub
        self._recovery = recovery
        self._incidents = incidents
        self._transitions = transitions

    def exited(self, exited: RankExited, rank: int | None) -> None:
        """A process of ours ended before its time."""
        state, seat = self._state, exited.rank.seat
        finding = explain_exit(exited.status, words=exited.words, memory=exited.memory)
        detail = describe_end(exited.status, core=exited.core, memory=exited.memory, tail=exited.tail)
        state.restarts[seat] += 1
        self.fault(Evidence(finding, Method.PROCESS, seat.node, rank, detail, exited.time))
        if state.restarts[seat] > self._recovery.max_restarts_per_rank:
            ended = f"rank {rank} ended {state.restarts[seat]} times without progress ({finding.error})"
            self._hub.node_is_bad(seat.node, ended)

    def noticed(self, process: RankProcessState, noticed: Noticed) -> None:
        """An agent has found something out about one of its ranks, from outside."""
        state, seat = self._state, process.address.seat
        if 0 < noticed.epoch < state.epoch:
            return
        rank = state.rank_of(seat)
        evidence = Evidence(noticed.finding, noticed.method, seat.node, rank, noticed.detail, noticed.time)
        self._replace_or_go_on(process, evidence)

    def raised(self, process: RankProcessState, fault: RankFault, when: float) -> None:
        """A rank met an exception."""
        state, seat = self._state, process.address.seat
        if 0 < fault.epoch < state.epoch:
            return  # of an epoch that is over
        finding = explain_exception(fault.error)
        text = fault.error if finding.collateral else fault.traceback
        evidence = Evidence(finding, Method.EXCEPTION, seat.node, state.rank_of(seat), text, when)
        self._replace_or_go_on(process, evidence, fault.error)

    def fault(self, evidence: Evidence) -> None:
        """Open an incident or add to the open one, and have a transition begin (anew)."""
        state = self._state
        if state.finished:
            return
        self._incidents.add(evidence)
        if evidence.finding.severity is Severity.PROGRAM:
            where = f"rank {evidence.rank} on {evidence.node}"
            self._hub.fail(f"{evidence.finding.error} in {where}", evidence.detail)
        elif self._transitions.gathering:
            state.news.set()  # the transition under way takes it into account
        else:
            self._transitions.begin()

    def _replace_or_go_on(self, process: RankProcessState, evidence: Evidence, brief: str = "") -> None:
        """Do what the evidence against a living process asks for."""
        state, seat = self._state, process.address.seat
        level = self._incidents.level(evidence.finding, evidence.node, evidence.rank)
        brief = f"rank {evidence.rank}: {brief or evidence.finding.error}"
        if level is Severity.SEV2:
            # The process cannot be trusted any more: it is replaced as if it had ended.
            state.restarts[seat] += 1
            state.seats.remove(seat)
            self._hub.stop_rank(process.address)
        self.fault(evidence)
        if level is Severity.SEV1:
            self._hub.node_is_bad(seat.node, brief)
        elif state.restarts[seat] > self._recovery.max_restarts_per_rank:
            self._hub.node_is_bad(seat.node, f"{brief} (failed {state.restarts[seat]} times)")

"""What is done about evidence against a task's ranks and nodes."""

from __future__ import annotations

import asyncio

from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.exits import describe_end, explain_exit
from unicron_hpc.detect.handling import Action, Decision
from unicron_hpc.detect.severity import NOT_ANSWERING, Method, Severity
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.incident import Evidence, Incident
from unicron_hpc.supervisor.incidents import Incidents
from unicron_hpc.supervisor.messages import Noticed, RankExited
from unicron_hpc.supervisor.rank_messages import RankAddress, RankFault
from unicron_hpc.supervisor.seats import RankProcessState
from unicron_hpc.supervisor.task_state import TaskState
from unicron_hpc.supervisor.transitions import Transitions

#: Seconds in which other ranks may still tell of an earlier fault before a run is ended for its program's.
SETTLE = 0.2
#: Actions after which the process is not used any more.
_USED_UP = frozenset({Action.RESTART, Action.NODE_OUT, Action.NODE_ON_TRIAL, Action.NODE_AWAY})
_NODE_GOES = frozenset({Action.NODE_OUT, Action.NODE_ON_TRIAL, Action.NODE_AWAY})


class Faults:
    """Takes evidence, has the rules decide, and has it done.

    Parameters
    ----------
    state, hub, incidents, transitions
        The task's.
    """

    def __init__(
        self,
        state: TaskState,
        hub: Hub,
        incidents: Incidents,
        transitions: Transitions,
    ) -> None:
        self._state = state
        self._hub = hub
        self._incidents = incidents
        self._transitions = transitions
        self._concluding: asyncio.Handle | None = None

    def close(self) -> None:
        """Decide nothing any more."""
        if self._concluding is not None:
            self._concluding.cancel()

    # ------------------------------------------------------------ what is heard

    def exited(self, exited: RankExited, rank: int | None) -> None:
        """A process of ours ended before its time."""
        finding = explain_exit(exited.status, words=exited.words, memory=exited.memory)
        detail = describe_end(exited.status, core=exited.core, memory=exited.memory, tail=exited.tail)
        evidence = Evidence(finding, Method.PROCESS, exited.rank.seat.node, rank, detail, exited.time)
        self._against_rank(evidence, exited.rank, None)

    def raised(self, process: RankProcessState, fault: RankFault, when: float) -> None:
        """A rank met an exception."""
        state, seat = self._state, process.address.seat
        finding = explain_exception(fault.error)
        words = fault.error if finding.collateral else fault.traceback
        text = f"{fault.place}\n{words}".lstrip()
        evidence = Evidence(finding, Method.EXCEPTION, seat.node, state.rank_of(seat), text, when)
        over = 0 < fault.epoch < state.epoch
        if over and finding.collateral and state.incident is None:
            return  # we ended that epoch ourselves, without a fault: a neighbour heard of it first
        if over and not self._transitions.gathering:
            self._late(evidence)
        else:
            self._against_rank(evidence, process.address, process)

    def noticed(self, address: RankAddress, noticed: Noticed) -> None:
        """An agent has found something out about one of its ranks, from outside; it may have ended since."""
        state, seat = self._state, address.seat
        process = state.seats.find(address)
        recent = self._incidents.recent
        if process is not None:
            rank = state.rank_of(seat)
        elif recent is not None and address in recent.gone:
            rank = recent.gone[address]
        else:
            return
        evidence = Evidence(noticed.finding, noticed.method, seat.node, rank, noticed.detail, noticed.time)
        if process is None or (0 < noticed.epoch < state.epoch and not self._transitions.gathering):
            self._late(evidence)
        else:
            self._against_rank(evidence, address, process)

    def noticed_of_node(self, node: str, noticed: Noticed) -> bool:
        """Something about a node that explains why a process on it ended; False where none did."""
        recent = self._incidents.recent
        if recent is None or node not in recent.failed_nodes():
            return False
        ranks = {e.rank for e in recent.evidence if e.node == node and e.method is Method.PROCESS}
        rank = next(iter(ranks)) if len(ranks) == 1 else None
        self._late(Evidence(noticed.finding, noticed.method, node, rank, noticed.detail, noticed.time))
        return True

    def not_answering(self, process: RankProcessState) -> None:
        """A process did not do as it was told in time."""
        seat = process.address.seat
        rank = self._state.rank_of(seat)
        evidence = Evidence(NOT_ANSWERING, Method.STATISTICS, seat.node, rank, "stopped or stuck")
        self._against_rank(evidence, process.address, process)

    def fault(self, evidence: Evidence) -> None:
        """Something is wrong with the whole task, or a node of it is out: go on with what is left."""
        if self._state.finished:
            return
        before = self._state.incident
        # Of a node that is out it has been decided: here, if it was for a rank of this task, or by the hub.
        decided = before is not None and evidence in before.evidence
        incident = self._incidents.add(evidence)
        if not decided and evidence.finding.severity is not Severity.SEV1:
            self._incidents.decide(incident, evidence, 0)
        self._go_on()

    # ------------------------------------------------------------ what is done

    def _against_rank(
        self, evidence: Evidence, address: RankAddress, process: RankProcessState | None
    ) -> None:
        """Do what the rules ask for; `process` is None where it has ended."""
        if evidence.finding.severity is Severity.INFO and process is not None:
            self._hub.warn(evidence)
            return
        state = self._state
        incident = self._incidents.add(evidence)
        decision = self._incidents.decide(incident, evidence, state.restarts[address.seat] + 1)
        if process is None or decision.action in _USED_UP:
            state.restarts[address.seat] += 1
            incident.gone[address] = evidence.rank
        if process is not None and decision.action in _USED_UP:
            # It cannot be trusted any more: it is replaced as if it had ended.
            state.seats.remove(address.seat)
            self._hub.stop_rank(address)
        self._act(incident, evidence, decision)

    def _act(self, incident: Incident, evidence: Evidence, decision: Decision) -> None:
        if decision.action is Action.STOP:
            self._conclude_soon(incident, evidence)
        elif evidence.finding.collateral and self._concluding is not None:
            if self._all_have_spoken(incident):
                self._conclude_soon(incident, evidence)
        elif decision.action not in _NODE_GOES or not self._hub.node_is_bad(evidence, decision):
            self._go_on()

    def _late(self, evidence: Evidence) -> None:
        """A report about what is over already: it corrects the verdict, and what was not enough is made good.

        The process has been replaced, or has taken part in a new epoch since; only a node that is bad, and a
        fault of the program, would strike again.
        """
        if evidence.finding.severity is Severity.INFO:
            self._hub.warn(evidence)
            return
        incident = self._incidents.add_late(evidence)
        if incident is None:
            return
        decision = self._incidents.consider(incident, evidence, 0)
        if decision.action in _NODE_GOES:
            self._incidents.tell_action(incident, evidence, decision)
            self._incidents.reopen(incident)
            self._hub.node_is_bad(evidence, decision)
        elif decision.action is Action.STOP and incident is self._state.incident:
            self._incidents.tell_action(incident, evidence, decision)
            self._conclude_soon(incident, evidence)

    def _go_on(self) -> None:
        """Have a transition begin, or the one under way take the news into account."""
        if self._transitions.gathering:
            self._state.news.set()
        else:
            self._transitions.begin()

    def _conclude_soon(self, incident: Incident, evidence: Evidence) -> None:
        """End the run for its program's fault, once it is clear whose was the first."""
        loop = asyncio.get_running_loop()
        if self._concluding is None:
            self._concluding = loop.call_later(SETTLE, self._conclude, incident, evidence)
        if self._all_have_spoken(incident):
            self._concluding.cancel()
            self._concluding = loop.call_soon(self._conclude, incident, evidence)

    def _all_have_spoken(self, incident: Incident) -> bool:
        layout = self._state.layout
        return layout is None or set(range(layout.world_size)) <= {e.rank for e in incident.evidence}

    def _conclude(self, incident: Incident, evidence: Evidence) -> None:
        self._concluding = None
        verdict = self._incidents.judge(incident)
        first = incident.program_fault() or evidence
        if first.rank in verdict.collateral:
            if incident is self._state.incident:
                self._go_on()  # it came of another rank's fault, which is mended
            return
        where = f"rank {first.rank} on {first.node}"
        self._hub.fail(f"{first.finding.error} in {where}", first.detail)

"""One task under the coordinator: its nodes, its ranks, what is heard of them, and its end."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from unicron_hpc.config import RecoverySettings, TaskSettings
from unicron_hpc.detect.progress import Progress
from unicron_hpc.detect.severity import TASK_HANG, Method, Severity
from unicron_hpc.planner.calibrate import Measured
from unicron_hpc.planner.candidate import Candidate
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.work import NodeSlots, TaskWork
from unicron_hpc.runtime.orders import Committed
from unicron_hpc.supervisor.checkpoints import Checkpoints
from unicron_hpc.supervisor.faults import Faults
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.incident import Evidence, Incident
from unicron_hpc.supervisor.incidents import Incidents
from unicron_hpc.supervisor.keystore import KeyStore
from unicron_hpc.supervisor.messages import Noticed, RankExited, RankSaid, RankStarted, TaskSnapshot
from unicron_hpc.supervisor.pace import Pace
from unicron_hpc.supervisor.rank_messages import (
    CheckpointPart,
    Cut,
    RankAddress,
    RankCommitted,
    RankFault,
    RankFinished,
    RankHeld,
    RankHello,
    RankReady,
    RankSection,
    StoreRequest,
)
from unicron_hpc.supervisor.seats import RankProcessState, Seats
from unicron_hpc.supervisor.stragglers import Running
from unicron_hpc.supervisor.task_saves import TaskSaves
from unicron_hpc.supervisor.task_state import TaskState
from unicron_hpc.supervisor.transitions import Transitions
from unicron_hpc.supervisor.vitals import Vitals

log = logging.getLogger(__name__)


class TaskControl:
    """The life of one task.

    Parameters
    ----------
    task, work
        The settings, and the task as the planner sees it.
    recovery
        Time-outs and budgets.
    hub
        The coordinator.
    """

    def __init__(self, task: TaskSettings, work: TaskWork, recovery: RecoverySettings, hub: Hub) -> None:
        self.name = task.name
        self._state = TaskState(task, work, Seats(task.name), KeyStore(0, hub.tell))
        self._recovery = recovery
        self._hub = hub
        self._checkpoints = Checkpoints(task, hub.journal, hub.tell, self.check_finished)
        self.saves = TaskSaves(self._state, hub, self._checkpoints)
        self._progress = Progress(recovery.iteration_failure_factor, recovery.iteration_failure_floor)
        self._incidents = Incidents(self._state, hub, recovery)
        self._pace = Pace()
        self.vitals = Vitals()
        self._transitions = Transitions(
            state=self._state,
            hub=hub,
            recovery=recovery,
            checkpoints=self._checkpoints,
            incidents=self._incidents,
            progress=self._progress,
            on_fault=self._on_fault,
            on_silent=self._on_silent,
            on_running=self.check_finished,
        )
        self._faults: Faults = Faults(self._state, hub, self._incidents, self._transitions)
        #: Processes that may take as long as their disk does; some may be gone meanwhile.
        self._sections: set[RankAddress] = set()

    # ------------------------------------------------------------ what the coordinator asks

    @property
    def layout(self) -> Layout | None:
        """The layout that runs, or that the transition under way leads to."""
        return self._state.layout

    @property
    def finished(self) -> bool:
        return self._state.finished

    @property
    def nodes(self) -> tuple[NodeSlots, ...]:
        """The nodes that it has."""
        return self._state.nodes

    @property
    def work(self) -> TaskWork:
        """The task as the planner sees it, corrected by measurements."""
        return self._state.work

    def running(self, now: float) -> Running | None:
        """What runs, and how its ranks look; None while nothing does."""
        state = self._state
        if state.layout is None or state.finished or self.in_transition:
            return None
        here = {process.address: process.address.seat for process in state.seats}
        fresh = self.vitals.of(here, state.epoch, now)
        by_rank = {state.rank_of(here[address]): vital for address, vital in fresh.items()}
        return Running(state.layout, state.work, {r: v for r, v in by_rank.items() if r is not None})

    @property
    def in_transition(self) -> bool:
        return self._transitions.under_way

    def snapshot(self, data_ready: bool) -> TaskSnapshot:
        """What a successor needs to know."""
        state = self._state
        last = self._hub.commits.last(self.name)
        nodes = tuple(node.name for node in state.nodes)
        return TaskSnapshot(
            self.name,
            state.epoch,
            state.layout,
            last,
            state.finished,
            data_ready,
            nodes,
            state.incident.carried() if state.incident else None,
            tuple(state.restarts.items()),
        )

    @property
    def measured(self) -> Sequence[Measured]:
        """The median iteration of every layout that has run long enough."""
        return self._pace.measured()

    def assign(
        self,
        nodes: tuple[NodeSlots, ...],
        *,
        candidate: Candidate | None = None,
        from_table: bool = False,
        evidence: Evidence | None = None,
    ) -> None:
        """Give the task these nodes; it moves to them if they are others, or if there is a fault to mend.

        Parameters
        ----------
        nodes
            What it has from now on; without any it stops and waits.
        candidate, from_table
            How to run on them, where that was worked out, and whether it was ready before the event.
        evidence
            The fault because of which they change, if it hit this task.
        """
        state = self._state
        changed = {node.name for node in nodes} != {node.name for node in state.nodes}
        if not changed and evidence is None:
            return
        state.nodes, state.candidate, state.from_table = nodes, candidate, from_table
        if state.finished:
            return
        if not nodes:
            self._wait_for_nodes()
        elif evidence is not None:
            self._faults.fault(evidence)
        else:
            self._transitions.begin()

    def plan_again(self, nodes: tuple[NodeSlots, ...]) -> bool:
        """Move to the best layout on the nodes that it has, whose speeds have changed.

        Returns
        -------
        bool
            False where a transition or an incident is under way, which sees to that itself.
        """
        state = self._state
        if state.finished or state.layout is None or self.in_transition or state.incident is not None:
            return False
        state.nodes, state.candidate, state.from_table = nodes, None, False
        state.planned = frozenset()  # the layout was not chosen for nodes of these speeds
        self._transitions.begin()
        return True

    def keep(self, nodes: tuple[NodeSlots, ...]) -> None:
        """Note the nodes that a predecessor gave it."""
        self._state.nodes = nodes

    def use(self, work: TaskWork) -> None:
        """Plan with this description from now on: the predecessor's, corrected by measurements."""
        self._state.work = work

    def _wait_for_nodes(self) -> None:
        """No node is left for this task: its ranks end, it goes on from a checkpoint when it gets some."""
        state = self._state
        if state.layout is None:
            return
        self._transitions.cancel()
        for process in state.seats:
            state.seats.remove(process.address.seat)
            self._hub.stop_rank(process.address)
        state.layout, state.planned, state.incident = None, frozenset(), None
        self._hub.journal.write("task_waiting", state.epoch, task=self.name)

    def adopt(self, snapshot: TaskSnapshot) -> None:
        """Go on with what a predecessor decided."""
        state = self._state
        state.epoch, state.layout, state.finished = snapshot.epoch, snapshot.layout, snapshot.finished
        state.running_epoch = snapshot.epoch
        state.incident = Incident.adopt(snapshot.incident) if snapshot.incident else None
        state.restarts = Counter(dict(snapshot.restarts))
        state.planned = frozenset(snapshot.nodes)
        state.store = KeyStore(state.epoch, self._hub.tell)
        if state.layout is not None:
            self._hub.commits.begin_epoch(self.name, state.epoch, state.layout.world_size)

    def adopt_rank(self, address: RankAddress, pid: int) -> None:
        """A process that runs although this coordinator did not start it."""
        self._state.seats.adopt(address, pid)

    def close(self) -> None:
        """Stop deciding (the run is over, or somebody else coordinates)."""
        self._transitions.close()
        self._faults.close()

    def suspend(self) -> None:
        """Have all ranks stop where they are; nothing is decided until `resume`."""
        state = self._state
        if not state.finished and state.layout is not None:
            self._transitions.suspend()

    def resume(self) -> None:
        """Decisions count again: go on, in a new epoch."""
        self._transitions.resume()

    def shift(self, seconds: float) -> None:
        """The coordinator itself did not run for that long."""
        self._progress.shift(seconds)

    def tick(self, now: float) -> None:
        """Look for an iteration that takes far too long."""
        here = [process.address for process in self._state.seats]
        if self.finished or self.in_transition or not self._sections.isdisjoint(here):
            return
        late = self._progress.late(now)
        # Whoever is stuck in work of its own is named by its agent; this is for messages that got lost.
        if late is not None and not self.vitals.somebody_works(here, self._state.epoch, now):
            self._progress.pause()
            self._dump_stacks()
            detail = f"no commit for {late:.1f} s, the mean is {self._progress.mean or 0:.2f} s"
            self._faults.fault(Evidence(TASK_HANG, Method.STATISTICS, "", None, detail))

    # ------------------------------------------------------------ what agents tell

    def on_started(self, started: RankStarted) -> None:
        """A process runs."""
        process = self._state.seats.find(started.rank)
        if process is None:
            # Given up while it was starting.
            self._hub.stop_rank(started.rank)
            return
        process.pid = started.pid
        seat = started.rank.seat
        self._hub.journal.write(
            "rank_started",
            self._state.epoch,
            task=self.name,
            node=seat.node,
            slot=seat.slot,
            pid=started.pid,
            incarnation=started.rank.incarnation,
        )

    def on_exited(self, exited: RankExited) -> None:
        """A process is gone."""
        state, seat = self._state, exited.rank.seat
        if state.seats.find(exited.rank) is None:
            return
        state.seats.remove(seat)
        rank = state.rank_of(seat)
        self._hub.journal.write(
            "rank_exited",
            state.epoch,
            task=self.name,
            node=seat.node,
            slot=seat.slot,
            rank=rank,
            pid=exited.pid,
            status=exited.status,
        )
        if not self.finished:
            self._faults.exited(exited, rank)

    def on_noticed(self, noticed: Noticed) -> None:
        """An agent has found something out about one of its ranks, from outside."""
        address = noticed.rank
        if address is None or self.finished:
            return
        process = self._state.seats.find(address)
        if process is not None and noticed.method is Method.STATISTICS:
            if not self.in_transition:
                self._dump_stacks()
            elif noticed.finding.severity is Severity.SEV2 and not self._transitions.can_spare(process):
                # It may have the last copy of something: the next attempt asks for that, and waits longer.
                again = msgspec.structs.replace(noticed.finding, severity=Severity.SEV3)
                noticed = msgspec.structs.replace(noticed, finding=again)
        self._faults.noticed(address, noticed)

    def on_node_noticed(self, node: str, noticed: Noticed) -> bool:
        """An agent has found something out about its node; True where that explains a fault of this task."""
        return not self.finished and self._faults.noticed_of_node(node, noticed)

    def _dump_stacks(self) -> None:
        """Have every rank's stacks taken; what is ordered next is done to it afterwards."""
        nodes = {process.address.seat.node for process in self._state.seats}
        self._hub.dump_stacks(self.name, self._state.epoch, nodes)

    def on_node_lost(self, node: str) -> bool:
        """A node is out; so are the processes on it.

        Returns
        -------
        bool
            Whether that hits this task.
        """
        state = self._state
        there = state.seats.on_node(node)
        for process in there:
            state.seats.remove(process.address.seat)
        seated = state.layout is not None and any(seat.node == node for seat in state.layout.seats)
        return not state.finished and (bool(there) or seated)

    def stop_ranks_on(self, node: str) -> None:
        """End the processes of a node that is about to be out, while its agent stays a little."""
        for process in self._state.seats.on_node(node):
            self._hub.stop_rank(process.address)

    def incident_of(self, evidence: Evidence) -> int | None:
        """The number of the open incident, if this is part of its evidence."""
        incident = self._state.incident
        return incident.number if incident is not None and evidence in incident.evidence else None

    def on_coordinator_change(self, evidence: Evidence) -> None:
        """A new coordinator took over: begin an epoch of its own, unless the loss of the node did already."""
        if not self.in_transition:
            self._faults.fault(evidence)

    def on_said(self, message: RankSaid) -> None:
        """A rank speaks."""
        state = self._state
        process = state.seats.find(message.rank)
        if process is None:
            return
        match message.said:
            case RankHello():
                process.said_hello = True
                if self._transitions.gathering:
                    # An order to cut that was sent before may have found nobody.
                    self._hub.tell(process.address, Cut(state.epoch))
            case RankHeld(epoch, holdings):
                process.held_epoch, process.holdings = epoch, holdings
                for committed in holdings.recent:
                    self.on_commit(state.running_epoch, committed)
            case RankReady(epoch, report):
                process.ready_epoch, process.report = epoch, report
                if report.committed:
                    self.on_commit(epoch, report.committed)
            case RankCommitted(epoch, committed):
                self.on_commit(epoch, committed)
            case RankFault():
                self._faults.raised(process, message.said, message.time)
            case RankFinished(epoch, _):
                process.finished = epoch == state.epoch
                self.check_finished()
            case RankSection(_, name):
                (self._sections.add if name else self._sections.discard)(message.rank)
            case StoreRequest():
                state.store.handle(message.rank, message.said)
            case CheckpointPart():
                self._checkpoints.on_part(message.rank, message.said)
        state.news.set()

    def on_commit(self, epoch: int, committed: Committed) -> None:
        """An iteration counts."""
        if not self._hub.commits.add(self.name, epoch, committed):
            return
        if epoch == self._state.epoch and not self.in_transition:
            self._progress.committed(time.monotonic())
            self._pace.committed(self._state.layout, committed.seconds)
            self._state.restarts.clear()
            self._incidents.close(committed.iteration)

    def _on_fault(self, evidence: Evidence) -> None:
        self._faults.fault(evidence)

    def _on_silent(self, process: RankProcessState) -> None:
        self._faults.not_answering(process)

    def check_finished(self) -> None:
        """End the task when every rank has committed the last iteration and the last checkpoint is sealed."""
        state = self._state
        if state.layout is None or state.finished or self.in_transition:
            return
        here = [state.seats.get(seat) for seat in state.layout.seats]
        if not all(process is not None and process.finished for process in here):
            return
        self._progress.pause()
        lost = self._checkpoints.failure
        if lost:
            self._hub.fail(f"task {self.name}: the last checkpoint could not be written", lost)
        elif self._checkpoints.saved(state.task.train.train_iters):
            state.finished = True
            self._hub.commits.flush(self.name)
            for process in state.seats:
                state.seats.remove(process.address.seat)
                self._hub.stop_rank(process.address)
            self._hub.task_finished(self.name)

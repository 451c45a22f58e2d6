"""One task under the coordinator: its ranks, its faults, and the transition from one epoch to the next."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from unicron_hpc.config import RecoverySettings, TaskSettings
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.exits import explain_exit
from unicron_hpc.detect.progress import Progress
from unicron_hpc.detect.severity import NOT_ANSWERING, TASK_HANG, Finding, Method, Severity
from unicron_hpc.errors import UnicronError
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.movement import HeldUnit
from unicron_hpc.planner.movement import moves as plan_moves
from unicron_hpc.planner.work import NodeSlots, TaskWork
from unicron_hpc.report.journal import Journal
from unicron_hpc.runtime.orders import Committed, Rebuild
from unicron_hpc.supervisor.checkpoints import Checkpoints
from unicron_hpc.supervisor.commit_log import CommitLog
from unicron_hpc.supervisor.incident import Evidence, Incident
from unicron_hpc.supervisor.keystore import KeyStore
from unicron_hpc.supervisor.layout_choice import choose_layout
from unicron_hpc.supervisor.messages import RankExited, RankSaid, RankStarted, TaskSnapshot
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
    RebuildOrder,
    StoreRequest,
    ToRank,
)
from unicron_hpc.supervisor.resume import Resume, resume_point
from unicron_hpc.supervisor.seats import RankProcessState, Seats

log = logging.getLogger(__name__)


class Hub(Protocol):
    """What a task needs of its coordinator."""

    journal: Journal
    commits: CommitLog

    def tell(self, rank: RankAddress, order: ToRank) -> None: ...
    def start_rank(self, rank: RankAddress) -> None: ...
    def stop_rank(self, rank: RankAddress) -> None: ...
    def next_epoch(self) -> int: ...
    def next_incident(self) -> int: ...
    def active_nodes(self, task: str) -> Sequence[NodeSlots]: ...
    def spare_nodes(self, task: str) -> Sequence[NodeSlots]: ...
    def node_is_bad(self, node: str, reason: str) -> None: ...
    def changed(self) -> None: ...
    def fail(self, cause: str, detail: str = "") -> None: ...
    def task_finished(self, task: str) -> None: ...


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

    def __init__(
        self,
        task: TaskSettings,
        work: TaskWork,
        recovery: RecoverySettings,
        hub: Hub,
    ) -> None:
        self.name = task.name
        self.task = task
        self.work = work
        self.epoch = 0
        self.layout: Layout | None = None
        self.finished = False
        self.seats = Seats(task.name)
        self._recovery = recovery
        self._hub = hub
        self._checkpoints = Checkpoints(task, hub.journal, hub.tell, self.check_finished)
        self._store = KeyStore(0, hub.tell)
        self._progress = Progress(recovery.iteration_failure_factor, recovery.iteration_failure_floor)
        self._incident: Incident | None = None
        self._transition: asyncio.Task[None] | None = None
        self._gathering = False
        self._news = asyncio.Event()
        self._restarts: Counter[Seat] = Counter()
        self._sections: set[Seat] = set()

    # ------------------------------------------------------------ what others ask

    def snapshot(self, data_ready: bool) -> TaskSnapshot:
        """What a successor needs to know."""
        last = self._hub.commits.last(self.name)
        return TaskSnapshot(self.name, self.epoch, self.layout, last, self.finished, data_ready)

    @property
    def in_transition(self) -> bool:
        return self._transition is not None and not self._transition.done()

    def begin(self) -> None:
        """Start the training (or take it over from a predecessor with a new epoch)."""
        self._begin_transition()

    def adopt(self, snapshot: TaskSnapshot) -> None:
        """Go on with what a predecessor decided."""
        self.epoch, self.layout, self.finished = snapshot.epoch, snapshot.layout, snapshot.finished
        self._store = KeyStore(self.epoch, self._hub.tell)
        if self.layout is not None:
            self._hub.commits.begin_epoch(self.name, self.epoch, self.layout.world_size)
            self._progress.begin(time.monotonic())

    def close(self) -> None:
        """Stop deciding (the run is over, or somebody else coordinates)."""
        if self._transition:
            self._transition.cancel()

    def shift(self, seconds: float) -> None:
        """The coordinator itself did not run for that long."""
        self._progress.shift(seconds)

    def tick(self, now: float) -> None:
        """Look for an iteration that takes far too long."""
        if self.finished or self.in_transition or self._sections:
            return
        late = self._progress.late(now)
        if late is not None:
            self._progress.pause()
            detail = f"no commit for {late:.1f} s, the mean is {self._progress.mean or 0:.2f} s"
            self._fault(Evidence(TASK_HANG, Method.STATISTICS, "", None, detail))

    # ------------------------------------------------------------ what agents tell

    def on_started(self, started: RankStarted) -> None:
        """A process runs."""
        process = self.seats.find(started.rank)
        if process:
            process.pid = started.pid
            self._hub.journal.write(
                "rank_started",
                self.epoch,
                task=self.name,
                node=started.rank.seat.node,
                slot=started.rank.seat.slot,
                pid=started.pid,
                incarnation=started.rank.incarnation,
            )

    def on_exited(self, exited: RankExited) -> None:
        """A process is gone."""
        process = self.seats.find(exited.rank)
        if process is None:
            return
        seat = exited.rank.seat
        self.seats.remove(seat)
        self._sections.discard(seat)
        rank = self._rank_of(seat)
        self._hub.journal.write(
            "rank_exited",
            self.epoch,
            task=self.name,
            node=seat.node,
            slot=seat.slot,
            rank=rank,
            pid=exited.pid,
            status=exited.status,
        )
        if self.finished:
            return
        finding = explain_exit(exited.status)
        self._restarts[seat] += 1
        self._fault(Evidence(finding, Method.PROCESS, seat.node, rank, exited.tail, exited.time))
        if self._restarts[seat] > self._recovery.max_restarts_per_rank:
            self._hub.node_is_bad(
                seat.node, f"rank {rank} ended {self._restarts[seat]} times without progress ({finding.error})"
            )

    def on_node_lost(self, node: str, evidence: Evidence) -> None:
        """A node is out; so are the processes on it."""
        concerned = bool(self.seats.on_node(node)) or (
            self.layout is not None and any(seat.node == node for seat in self.layout.seats)
        )
        for process in self.seats.on_node(node):
            self.seats.remove(process.address.seat)
            self._sections.discard(process.address.seat)
        if concerned and not self.finished:
            self._fault(evidence)

    def on_coordinator_change(self, evidence: Evidence) -> None:
        """A new coordinator took over: begin an epoch of its own, unless the loss of the node did already."""
        if not self.finished and not self.in_transition:
            self._fault(evidence)

    def on_said(self, message: RankSaid) -> None:
        """A rank speaks."""
        process = self.seats.find(message.rank)
        if process is None:
            return
        match message.said:
            case RankHello():
                process.said_hello = True
                if self._gathering:  # an order to cut that was sent before may have found nobody
                    self._hub.tell(process.address, Cut(self.epoch))
            case RankHeld(epoch, holdings):
                process.held_epoch, process.holdings = epoch, holdings
                for committed in holdings.recent:
                    self.on_commit(self.epoch - 1, committed)
            case RankReady(epoch, report):
                process.ready_epoch, process.report = epoch, report
                if report.committed:
                    self.on_commit(epoch, report.committed)
            case RankCommitted(epoch, committed):
                self.on_commit(epoch, committed)
            case RankFault():
                self._on_fault(process, message.said, message.time)
            case RankFinished():
                process.finished = True
                self.check_finished()
            case RankSection(_, name):
                (self._sections.add if name else self._sections.discard)(message.rank.seat)
            case StoreRequest():
                self._store.handle(message.rank, message.said)
            case CheckpointPart():
                self._checkpoints.on_part(message.rank, message.said)
        self._news.set()

    def on_commit(self, epoch: int, committed: Committed) -> None:
        """An iteration counts."""
        if not self._hub.commits.add(self.name, epoch, committed):
            return
        if epoch == self.epoch and not self.in_transition:
            self._progress.committed(time.monotonic())
            if self._incident:
                self._close_incident(committed.iteration)
            self._restarts.clear()

    def _close_incident(self, iteration: int) -> None:
        incident, self._incident = self._incident, None
        if incident:
            self._hub.journal.write(
                "incident_closed",
                self.epoch,
                task=self.name,
                incident=incident.number,
                iteration=iteration,
                seconds=time.time() - incident.opened,
                attempts=incident.attempts,
            )

    def check_finished(self) -> None:
        """End the task when every rank has committed the last iteration and the last checkpoint is sealed."""
        if self.layout is None or self.finished:
            return
        here = [self.seats.get(seat) for seat in self.layout.seats]
        if all(process is not None and process.finished for process in here):
            self._progress.pause()
            if not self._checkpoints.saved(self.task.train.train_iters):
                return  # the last checkpoint is still being sealed; its end calls again
            self.finished = True
            self._progress.pause()
            self._hub.commits.flush(self.name)
            self._hub.task_finished(self.name)

    # ------------------------------------------------------------ faults

    def _on_fault(self, process: RankProcessState, fault: RankFault, when: float) -> None:
        if 0 < fault.epoch < self.epoch:
            return  # of an epoch that is over
        seat = process.address.seat
        finding = explain_exception(fault.error)
        if finding.severity is Severity.SEV2:
            # The process cannot be trusted any more; its end is reported as it comes.
            self._restarts[seat] += 1
            self.seats.remove(seat)
            self._hub.stop_rank(process.address)
        text = fault.error if finding.collateral else fault.traceback
        self._fault(Evidence(finding, Method.EXCEPTION, seat.node, self._rank_of(seat), text, when))

    def _fault(self, evidence: Evidence) -> None:
        """Open an incident or add to the open one, and have the transition begin anew."""
        if self.finished:
            return
        if self._incident is None:
            self._incident = Incident(self._hub.next_incident(), self._hub.commits.last(self.name))
        self._incident.evidence.append(evidence)
        if not evidence.finding.collateral:
            self._write_fault(self._incident, evidence)
        if evidence.finding.severity is Severity.PROGRAM:
            where = f"rank {evidence.rank} on {evidence.node}"
            self._hub.fail(f"{evidence.finding.error} in {where}", evidence.detail)
            return
        if self.in_transition and self._gathering:
            self._news.set()  # the transition under way takes it into account
            return
        self._begin_transition()

    def _write_fault(self, incident: Incident, evidence: Evidence) -> None:
        log.warning(
            "incident %d: %s on %s (rank %s)",
            incident.number,
            evidence.finding.error,
            evidence.node or self.name,
            evidence.rank,
        )
        self._hub.journal.write(
            "fault_detected",
            self.epoch,
            task=self.name,
            incident=incident.number,
            node=evidence.node,
            rank=evidence.rank,
            error=evidence.finding.error,
            method=evidence.method.value,
            severity=evidence.finding.severity.name,
            evidence=evidence.detail[-2000:],
            fault_time=evidence.time,
        )

    def _rank_of(self, seat: Seat) -> int | None:
        if self.layout is None or seat not in self.layout.seats:
            return None
        return self.layout.seats.index(seat)

    # ------------------------------------------------------------ transition

    def _begin_transition(self) -> None:
        incident = self._incident
        if incident:
            incident.attempts += 1
            if incident.attempts > self._attempts_allowed():
                cause = incident.cause()
                text = cause.finding.error if cause else "unknown"
                self._hub.fail(
                    f"task {self.name} did not commit an iteration after {incident.attempts - 1} transitions; "
                    f"first cause: {text}",
                    cause.detail if cause else "",
                )
                return
        if self._transition:
            self._transition.cancel()
        self._progress.pause()
        self._store.close("a new epoch begins")
        self.epoch = self._hub.next_epoch()
        self._gathering = True
        self._transition = asyncio.create_task(self._run_transition(self.epoch), name=f"epoch {self.epoch}")

    def _attempts_allowed(self) -> int:
        """Each level of severity may be tried `max_retries` + 1 times; each lost node or rank counts anew."""
        evidence = len([e for e in self._incident.evidence if not e.finding.collateral]) if self._incident else 0
        return (self._recovery.max_retries + 1) * 2 + evidence

    async def _run_transition(self, epoch: int) -> None:
        try:
            async with asyncio.timeout(self._recovery.transition_timeout + self._start_allowance()):
                await self._transit(epoch)
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            late = [p for p in self.seats if p.ready_epoch != epoch]
            names = ", ".join(str(self._rank_of(p.address.seat)) for p in late)
            self._transition = None
            for process in late:
                self._give_up_on(process)
            finding = Finding("transition timed out", Severity.SEV2)
            self._fault(Evidence(finding, Method.STATISTICS, "", None, f"not ready: ranks {names}"))
        except UnicronError as error:
            self._hub.fail(error.message, error.hint)
        except Exception as error:
            log.exception("transition to epoch %d failed", epoch)
            self._hub.fail(f"internal error in the transition to epoch {epoch}: {error!r}")

    def _start_allowance(self) -> float:
        return self._recovery.startup_timeout if self.layout is None else 0.0

    async def _transit(self, epoch: int) -> None:
        clock = _Laps()
        journal = self._hub.journal
        incident = self._incident
        journal.write(
            "transition_started",
            epoch,
            task=self.name,
            incident=incident.number if incident else None,
        )
        for process in self.seats:
            self._hub.tell(process.address, Cut(epoch))
        await self._gather(epoch)
        clock.lap("gather")

        held = {p.address.seat: p.holdings for p in self.seats if p.holdings is not None}
        resume = resume_point(held)
        choice = choose_layout(
            self.work,
            self.layout,
            self._hub.active_nodes(self.name),
            self._hub.spare_nodes(self.name),
            resume.units,
        )
        self._gathering = False
        self.layout = choice.layout
        clock.lap("planning")
        journal.write(
            "plan_chosen",
            epoch,
            task=self.name,
            reason=choice.reason,
            seconds=clock.seconds["planning"],
            replicas=describe_replicas(choice.layout),
            nodes=sorted({seat.node for seat in choice.layout.seats}),
        )
        self._hub.changed()
        await self._fill_seats(choice.layout)
        clock.lap("start")

        orders = await self._orders(epoch, choice.layout, resume)
        self._store = KeyStore(epoch, self._hub.tell)
        self._hub.commits.begin_epoch(self.name, epoch, choice.layout.world_size)
        for seat, order in orders.items():
            process = self.seats.get(seat)
            if process is None:
                return  # gone this instant; its exit begins the next transition
            process.finished = False
            self._hub.tell(process.address, RebuildOrder(order))
        await self._until(
            lambda: all(
                (p := self.seats.get(seat)) is not None and p.ready_epoch == epoch for seat in orders
            )
        )
        clock.lap("rebuild")
        self._progress.begin(time.monotonic())
        self._finish_transition(epoch, clock)

    async def _gather(self, epoch: int) -> None:
        """Wait until every process has reported what it holds, or is known to be gone."""
        deadline = time.monotonic() + self._hold_timeout()

        def waiting() -> list[RankProcessState]:
            return [p for p in self.seats if p.said_hello and p.held_epoch != epoch]

        while waiting():
            left = deadline - time.monotonic()
            if left <= 0:
                for process in waiting():
                    seat = process.address.seat
                    rank = self._rank_of(seat)
                    self._give_up_on(process)
                    if self._incident:
                        evidence = Evidence(NOT_ANSWERING, Method.STATISTICS, seat.node, rank, "stopped or stuck")
                        self._incident.evidence.append(evidence)
                        self._write_fault(self._incident, evidence)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._next_news()
        program = self._incident.program_fault() if self._incident else None
        if program:
            self._hub.fail(program.finding.error, program.detail)

    def _give_up_on(self, process: RankProcessState) -> None:
        """Have a process killed; it is out of the plan at once, whenever it really ends."""
        seat = process.address.seat
        self._restarts[seat] += 1
        self.seats.remove(seat)
        self._hub.stop_rank(process.address)

    def _hold_timeout(self) -> float:
        """A lost node must be noticed before its ranks are given up; a long micro-batch must be let finish."""
        mean = self._progress.mean or 0.0
        return max(2.5 * self._recovery.node_timeout, 3 * mean)

    async def _fill_seats(self, layout: Layout) -> None:
        """Have a listening process in every seat, and none elsewhere."""
        wanted = set(layout.seats)
        for process in self.seats:
            if process.address.seat not in wanted:
                self.seats.remove(process.address.seat)
                self._hub.stop_rank(process.address)
        for seat in layout.seats:
            if seat not in self.seats:
                self._hub.start_rank(self.seats.new(seat).address)
        await self._until(
            lambda: all((p := self.seats.get(seat)) is not None and p.said_hello for seat in wanted)
        )

    async def _orders(self, epoch: int, layout: Layout, resume: Resume) -> dict[Seat, Rebuild]:
        """What to tell each seat: where its state comes from and where to go on."""
        tied, learned = self.task.model.tied, self.task.model.learned_positions
        checkpoint: str | None = None
        iteration, commit, move_list = resume.iteration, resume.commit, ()
        if iteration is not None:
            here: dict[Seat, tuple[HeldUnit, ...]] = {
                seat: units for seat, units in resume.units.items() if seat in layout.seats
            }
            plan = plan_moves(layout, here, tied=tied, learned_positions=learned)
            if plan.missing:
                names = ", ".join(f"{unit}/{index}" for unit, index in plan.missing[:6])
                log.warning("no survivor holds %s; going back to a checkpoint", names)
                iteration = None
            else:
                move_list = plan.moves
        if iteration is None:
            found = await self._checkpoints.find_newest(epoch)
            commit = None
            checkpoint = str(found.path) if found else None
            iteration = found.iteration if found else 0
            self._hub.commits.flush(self.name)
            self._hub.commits.roll_back(self.name, epoch, iteration)
        base = Rebuild(
            epoch=epoch,
            rank=0,
            layout=layout,
            iteration=iteration,
            moves=move_list,
            commit=commit,
            initial=iteration == 0 and checkpoint is None,
            checkpoint=checkpoint,
        )
        return {seat: msgspec.structs.replace(base, rank=rank) for rank, seat in enumerate(layout.seats)}

    def _finish_transition(self, epoch: int, clock: _Laps) -> None:
        assert self.layout is not None  # set by this transition
        reports = [p.report for seat in self.layout.seats if (p := self.seats.get(seat)) and p.report]
        sources: Counter[str] = Counter({"local": 0, "peer": 0, "memory": 0, "disk": 0})
        for report in reports:
            sources.update(report.bytes_by_source)
        steps = {
            name: max((getattr(report, f"{name}_seconds") for report in reports), default=0.0)
            for name in ("commit", "groups", "chunk", "state", "warm")
        }
        incident = self._incident
        self._hub.journal.write(
            "transition_finished",
            epoch,
            task=self.name,
            incident=incident.number if incident else None,
            seconds=clock.total(),
            steps={**clock.seconds, **steps},
            state_sources=dict(sources),
            ranks=describe_ranks(self.layout, self.seats, self.name),
        )
        log.info("epoch %d runs after %.3f s: %s", epoch, clock.total(), clock.seconds)
        self._checkpoints.begin_epoch(epoch, self.layout)
        self._hub.changed()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for news until the condition holds (bounded by the transition's time-out)."""
        while not condition():
            await self._next_news()

    async def _next_news(self) -> None:
        self._news.clear()
        await self._news.wait()


class _Laps:
    """Seconds between named points."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now

    def total(self) -> float:
        return time.monotonic() - self._begun


def describe_replicas(layout: Layout) -> list[dict[str, Any]]:
    """A layout's replicas for the journal: micro-batches, and per stage its layers and nodes."""
    return [
        {
            "micro_batches": replica.micro_batches,
            "stages": [
                {"layers": [stage.first, stage.last], "nodes": [layout.seats[r].node for r in stage.ranks]}
                for stage in replica.stages
            ],
        }
        for replica in layout.replicas
    ]


def describe_ranks(layout: Layout, seats: Seats, task: str) -> list[dict[str, Any]]:
    """Every rank for the journal and `unicron status`."""
    described = []
    for position in layout.positions():
        seat = layout.seats[position.rank]
        process = seats.get(seat)
        described.append(
            {
                "node": seat.node,
                "slot": seat.slot,
                "rank": position.rank,
                "pid": process.pid if process else None,
                "task": task,
                "replica": position.replica,
                "stage": position.stage_index,
                "layers": [position.stage.first, position.stage.last],
            }
        )
    return sorted(described, key=lambda rank: rank["rank"])

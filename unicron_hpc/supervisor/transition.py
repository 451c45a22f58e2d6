"""From one epoch to the next: gather what survivors hold, plan, fill the seats, give orders, wait for all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.movement import MovePlan
from unicron_hpc.planner.movement import moves as plan_moves
from unicron_hpc.planner.reuse import Reuse
from unicron_hpc.planner.units import holders
from unicron_hpc.runtime.manifest import Found
from unicron_hpc.runtime.orders import Holdings, Rebuild
from unicron_hpc.supervisor.checkpoints import Checkpoints
from unicron_hpc.supervisor.describe import describe_ranks, describe_replicas
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.incidents import Incidents
from unicron_hpc.supervisor.keystore import KeyStore
from unicron_hpc.supervisor.layout_choice import choose_layout
from unicron_hpc.supervisor.rank_messages import Cut, RebuildOrder
from unicron_hpc.supervisor.resume import Resume, expendable, resume_point, reusable
from unicron_hpc.supervisor.seats import RankProcessState
from unicron_hpc.supervisor.self_tests import tell_self_tests
from unicron_hpc.supervisor.task_state import TaskState

log = logging.getLogger(__name__)

#: Seconds after which who has not told what it holds is asked again: a message may have been lost.
ASK_AGAIN = 1.0
#: Times the usual patience with those who may have the last copy of something.
LAST_COPY = 3.0
#: Longest step of the clock that patience is measured with, in seconds: a coordinator that did not run
#: itself has not waited for anybody.
LONGEST_STEP = 0.25


class Transition:
    """One attempt to begin an epoch; a fault on the way abandons it and another one begins.

    Parameters
    ----------
    state
        The task; `state.epoch` is the epoch to begin.
    hub
        The coordinator.
    checkpoints
        Where state is when no survivor has it.
    hold_timeout
        Seconds in which every process must have told what it holds.
    incidents
        Is told when everybody has been heard.
    on_silent
        Takes a process that has not told what it holds in time, while news are still taken into account.
    limit, reading_limit
        Seconds for the whole of it, and how many more where state is read from disk.
    self_test
        Whether ranks test themselves and their connections on the way.
    """

    def __init__(
        self,
        state: TaskState,
        hub: Hub,
        checkpoints: Checkpoints,
        hold_timeout: float,
        incidents: Incidents,
        on_silent: Callable[[RankProcessState], None],
        limit: float,
        reading_limit: float,
        self_test: bool,
    ) -> None:
        self._self_test = self_test
        self._limit = limit
        self._reading_limit = reading_limit
        self._scope: asyncio.Timeout | None = None
        self._resume = Resume(None, None, {})
        self._state = state
        self._hub = hub
        self._checkpoints = checkpoints
        self._hold_timeout = hold_timeout
        self._incidents = incidents
        self._on_silent = on_silent
        self.epoch = state.epoch
        #: While it gathers, news of more faults are taken into account; later they need a new transition.
        self.gathering = True

    async def run(self) -> None:
        """Do it.

        Raises
        ------
        TimeoutError
            When it takes longer than its limit.
        PlanError
            When no layout fits on what is left.
        """
        async with asyncio.timeout(self._limit) as self._scope:
            await self._run()

    async def _run(self) -> None:
        clock = _Laps()
        state, journal = self._state, self._hub.journal
        number = state.incident.number if state.incident else None
        journal.write("transition_started", self.epoch, task=state.name, incident=number)
        for process in state.seats:
            self._hub.tell(process.address, Cut(self.epoch))
        self._hub.changed()  # a successor shall know the incident, and what has been tried
        await self._gather()
        clock.lap("gather")
        resume = self._resume = self._told()
        # A fixed depth says how a training starts; on what is left later it may run otherwise.
        started = state.running_epoch > 0
        choice = choose_layout(
            msgspec.structs.replace(state.work, pipeline=None) if started else state.work,
            state.layout,
            state.nodes,
            state.planned,
            resume.units,
            state.candidate,
        )
        self.gathering = False
        state.planned = frozenset(node.name for node in state.nodes)
        layout = state.layout = choice.layout
        clock.lap("planning")
        journal.write(
            "plan_chosen",
            self.epoch,
            task=state.name,
            reason=choice.reason,
            from_table=state.from_table or choice.reason in ("start", "same seats"),
            seconds=clock.seconds["planning"],
            replicas=describe_replicas(layout),
            nodes=sorted({seat.node for seat in layout.seats}),
        )
        self._hub.changed()
        order = await self._order(layout, resume)
        await self._fill_seats(layout, order.senders)
        clock.lap("start")
        model = state.task.model
        reuse = reusable(order, self._holdings(), tied=model.tied, learned_positions=model.learned_positions)
        self._give_orders(order, reuse)
        places = (*layout.seats, *order.senders)
        await self._until(
            lambda: all((p := state.seats.get(seat)) and p.ready_epoch == self.epoch for seat in places)
        )
        for seat in order.senders:
            self._dismiss(seat)
        clock.lap("rebuild")
        self._finish(layout, clock)
        if reuse:
            journal.write(
                "iteration_reused",
                self.epoch,
                task=state.name,
                iteration=reuse[0].iteration,
                kept=layout.micro_batches - reuse[0].redone,
                redone=reuse[0].redone,
            )

    async def _gather(self) -> None:
        """Wait until every process has reported what it holds, or is known to be gone."""
        waited = asked = 0.0
        last = time.monotonic()
        while waiting := self._silent():
            if waited >= self._hold_timeout and not self._something_lacks():
                break
            if waited >= self._hold_timeout * LAST_COPY:
                break
            if waited >= asked + ASK_AGAIN:
                asked = waited
                for process in waiting:
                    self._hub.tell(process.address, Cut(self.epoch))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_STEP):
                    await self._next_news()
            now = time.monotonic()
            waited, last = waited + min(now - last, LONGEST_STEP), now
        for process in self._silent():
            self._on_silent(process)
        self._incidents.settle()

    def _silent(self) -> list[RankProcessState]:
        """Processes that listen and have not told what they hold."""
        return [p for p in self._state.seats if p.said_hello and p.held_epoch != self.epoch]

    def _told(self, without: RankProcessState | None = None) -> Resume:
        """Where training goes on by what has been told for this epoch."""
        return resume_point(self._holdings(without))

    def _holdings(self, without: RankProcessState | None = None) -> dict[Seat, Holdings]:
        """What each process has told for this epoch."""
        told = [p for p in self._state.seats if p.held_epoch == self.epoch and p is not without]
        return {p.address.seat: p.holdings for p in told if p.holdings is not None}

    def _something_lacks(self, without: RankProcessState | None = None) -> bool:
        """Whether those who have spoken do not have the whole model: who is silent may have the last copy."""
        state = self._state
        if state.layout is None or state.running_epoch == 0:
            return False
        model = state.task.model
        whole = holders(state.layout, tied=model.tied, learned_positions=model.learned_positions)
        told = self._told(without).units.values()
        return not whole.keys() <= {(unit.unit, unit.tensor_index) for units in told for unit in units}

    def can_spare(self, process: RankProcessState) -> bool:
        """Whether others have all state that a process may hold, as far as that has been told."""
        if self.gathering:
            return not self._something_lacks(without=process)
        seat = process.address.seat
        return expendable([seat], self._resume.units) == [seat]

    def give_up_on(self, process: RankProcessState) -> None:
        """Have a process killed; it is out of the plan at once, whenever it really ends."""
        seat = process.address.seat
        self._state.restarts[seat] += 1
        self._state.seats.remove(seat)
        self._hub.stop_rank(process.address)

    def hopeless(self, timeouts: int) -> list[RankProcessState]:
        """Processes to give up after a time-out, more of them each time in a row.

        Who never spoke did not start. Of the others, all alive, most only wait for somebody, and the next
        attempt may show for whom. After the second time-out those go whose state others have as well, after
        the third all that are not ready.
        """
        late = self.late()
        if self.gathering:
            return self._silent()
        if timeouts == 1:
            return [process for process in late if not process.said_hello]
        if timeouts == 2:
            seats = expendable([process.address.seat for process in late], self._resume.units)
            return [process for process in late if process.address.seat in seats]
        return late

    def late(self) -> list[RankProcessState]:
        """Processes that are not ready for the epoch."""
        return [p for p in self._state.seats if p.ready_epoch != self.epoch]

    async def _fill_seats(self, layout: Layout, senders: tuple[Seat, ...]) -> None:
        """Have a listening process in every seat, and none elsewhere but those that still have to send."""
        seats, wanted = self._state.seats, set(layout.seats)
        for process in seats:
            if process.address.seat not in wanted | set(senders):
                self._dismiss(process.address.seat)
        for seat in layout.seats:
            if seat not in seats:
                self._hub.start_rank(seats.new(seat, self.epoch).address)
        await self._until(lambda: all((p := seats.get(seat)) is not None and p.said_hello for seat in wanted))

    def _dismiss(self, seat: Seat) -> None:
        """End a process that the task needs no more."""
        process = self._state.seats.get(seat)
        if process is not None:
            self._state.seats.remove(seat)
            self._hub.stop_rank(process.address)

    def _give_orders(self, order: Rebuild, reuse: Mapping[int, Reuse]) -> None:
        """Tell each seat where its state comes from and where to go on."""
        self._state.store = KeyStore(self.epoch, self._hub.tell)
        self._hub.commits.begin_epoch(self._state.name, self.epoch, order.layout.world_size)
        # Now, not when all are ready: the first rank's part may come before the last one's word.
        self._checkpoints.begin_epoch(self.epoch, order.layout)
        for rank, seat in enumerate((*order.layout.seats, *order.senders)):
            process = self._state.seats.get(seat)
            if process is not None:  # else its end has just been told, and another transition begins
                process.finished = False
                own = msgspec.structs.replace(
                    order, rank=rank, self_test=self._self_test, reuse=reuse.get(rank)
                )
                self._hub.tell(process.address, RebuildOrder(own))

    async def _order(self, layout: Layout, resume: Resume) -> Rebuild:
        if resume.iteration is not None:
            plan, senders = self._movement(layout, resume)
            if not plan.missing:
                return Rebuild(
                    epoch=self.epoch,
                    rank=0,
                    layout=layout,
                    iteration=resume.iteration,
                    moves=plan.moves,
                    commit=resume.commit,
                    senders=senders,
                )
            names = ", ".join(f"{unit}/{index}" for unit, index in plan.missing[:6])
            log.warning("no survivor holds %s; going back to a checkpoint", names)
            self._hub.journal.write(
                "state_lost", self.epoch, task=self._state.name, units=sorted({u for u, _ in plan.missing})
            )
        found = None
        if self._state.task.checkpoint.resume or resume.iteration is not None:
            found = await self._find_checkpoint()
        iteration = found.iteration if found else 0
        self._hub.commits.roll_back(self._state.name, self.epoch, iteration)
        return Rebuild(
            epoch=self.epoch,
            rank=0,
            layout=layout,
            iteration=iteration,
            initial=found is None,
            checkpoint=str(found.path) if found else None,
        )

    async def _find_checkpoint(self) -> Found | None:
        """The newest whole checkpoint. Every byte of it is read, which has no limit but the disk's speed."""
        scope, loop = self._scope, asyncio.get_running_loop()
        if scope:
            scope.reschedule(None)
        found = await self._checkpoints.find_newest(self.epoch)
        if scope:
            scope.reschedule(loop.time() + self._limit + (self._reading_limit if found else 0.0))
        return found

    def _movement(self, layout: Layout, resume: Resume) -> tuple[MovePlan, tuple[Seat, ...]]:
        """Who sends what; processes that leave are asked only for what nobody else holds."""
        model = self._state.task.model

        def plan(senders: tuple[Seat, ...]) -> MovePlan:
            return plan_moves(
                layout,
                resume.units,
                tied=model.tied,
                learned_positions=model.learned_positions,
                iteration=resume.iteration,
                senders=senders,
            )

        found = plan(())
        if not found.missing:
            return found, ()
        lacking = set(found.missing)
        senders = tuple(
            seat
            for seat, units in resume.units.items()
            if seat not in layout.seats and any((u.unit, u.tensor_index) in lacking for u in units)
        )
        return (plan(senders), senders) if senders else (found, ())

    def _finish(self, layout: Layout, clock: _Laps) -> None:
        state = self._state
        reports = [p.report for seat in layout.seats if (p := state.seats.get(seat)) and p.report]
        sources: Counter[str] = Counter({"local": 0, "peer": 0, "memory": 0, "disk": 0})
        for report in reports:
            sources.update(report.bytes_by_source)
        slowest = {
            name: max((getattr(report, f"{name}_seconds") for report in reports), default=0.0)
            for name in ("commit", "groups", "chunk", "state", "warm")
        }
        state.running_epoch = self.epoch
        self._hub.journal.write(
            "transition_finished",
            self.epoch,
            task=state.name,
            incident=state.incident.number if state.incident else None,
            seconds=clock.total(),
            steps={**clock.seconds, **slowest},
            state_sources=dict(sources),
            ranks=describe_ranks(layout, state.seats, state.name),
        )
        tell_self_tests(state.name, self.epoch, layout, state.seats, self._hub)
        log.info("epoch %d runs after %.3f s: %s", self.epoch, clock.total(), clock.seconds)
        self._hub.epoch_runs()
        self._hub.changed()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for news until the condition holds (bounded by the transition's time-out)."""
        while not condition():
            await self._next_news()

    async def _next_news(self) -> None:
        self._state.news.clear()
        await self._state.news.wait()


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

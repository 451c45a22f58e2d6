"""A real coordinator whose simulated ranks hold state as real ones do, moved on one small step at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.supervisor.lone_coordinator import LoneJob
from unicron_hpc.detect.severity import Blame, Finding, Severity
from unicron_hpc.planner.holdings import HeldUnit
from unicron_hpc.planner.layout import Seat
from unicron_hpc.planner.units import all_units, units_of
from unicron_hpc.runtime.orders import Committed, Holdings, PendingCommit, Phase, Rebuild, RebuildReport
from unicron_hpc.supervisor.messages import (
    Body,
    DataReady,
    Join,
    RankExited,
    RankSaid,
    RankStarted,
    StartRank,
    StopRank,
    TellRank,
)
from unicron_hpc.supervisor.rank_messages import (
    Cut,
    FromRank,
    RankAddress,
    RankCommitted,
    RankFault,
    RankHeld,
    RankHello,
    RankReady,
    RebuildOrder,
)
from unicron_hpc.supervisor.task_control import TaskControl

BROKEN = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"
BROKEN_NODE = Finding("Xid 79", Severity.SEV1, Blame.NODE)
Step = Callable[[], None]


class Process:
    """A rank process: what `runtime.engine` keeps through faults, without the tensors.

    Attributes
    ----------
    stage
        How far it is with its order: `idle`, `begun`, `built` (its groups), `brought` (its state), `placed`.
    """

    def __init__(self, job: HoldingJob, address: RankAddress) -> None:
        self._job = job
        self.address = address
        self.alive = True
        self.inbox: deque[Cut | RebuildOrder | StopRank] = deque()
        self.outbox: deque[Body] = deque()
        self.cut = self.held = self.epoch = 0
        self.order: Rebuild | None = None
        self.stage = "idle"
        self.iteration = 0
        self.phase = Phase.IDLE
        self.place: frozenset[str] | None = None
        self.needed: frozenset[str] = frozenset()
        self.units: dict[str, int] = {}
        self.recent: list[Committed] = []

    def words(self) -> Iterator[Step]:
        """What it can say or hear next."""
        if self.outbox:
            yield self._be_heard
        if self.alive and self.inbox:
            yield self._take

    def steps(self) -> Iterator[Step]:
        """All that can happen to it next."""
        yield from self.words()
        order = self.order
        if order is None or not self.alive:
            return
        there = [self._job.at(seat, order.epoch) for seat in (*order.layout.seats, *order.senders)]
        if self.stage == "idle":
            yield self._begin
        elif self.stage == "begun":
            if all(other is not None for other in there):
                yield self._build
        elif self.stage == "built":
            yield self._bring
        elif self.stage == "brought":
            yield self._take_place
        elif not order.only_sends:
            computing = [other for other in there if other is not None and other.stage == "placed"]
            members = order.layout.world_size
            here = [other for other in computing if other.iteration >= self.iteration]  # none is behind
            reduced = [o for o in here if o.phase is Phase.REDUCED or o.iteration > self.iteration]
            if self.phase is not Phase.REDUCED and len(here) >= members:
                yield self._reduce
            elif self.phase is Phase.REDUCED and len(reduced) >= members:
                yield self._commit
        if self.stage != "idle" and any(other is None for other in there):
            yield self._lose_peer

    # ------------------------------------------------------------ what it says and hears

    def _be_heard(self) -> None:
        self._job.coordinator.handle(self.address.seat.node, self.outbox.popleft())

    def _say(self, said: FromRank) -> None:
        self.outbox.append(RankSaid(self.address, said, time.time()))

    def _take(self) -> None:
        match self.inbox.popleft():
            case StopRank():
                self.die()
            case Cut(epoch):
                self.cut = max(self.cut, epoch)
                if self.cut > self.held:
                    self._leave()
                    self.held = self.cut
                    self._say(RankHeld(self.cut, self.holdings()))
            case RebuildOrder(rebuild):
                if rebuild.epoch >= self.cut:
                    self.order, self.stage = rebuild, "idle"

    def die(self, status: int = -9) -> None:
        if self.alive:
            self.alive = False
            self.outbox.append(RankExited(self.address, 1, status, "", time.time(), False, "", ""))

    def holdings(self) -> Holdings:
        reduced = self.phase is Phase.REDUCED and self.place is not None
        return Holdings(
            iteration=self.iteration,
            phase=self.phase,
            pending_iteration=0 if self.phase is Phase.IDLE else self.iteration + 1,
            units=tuple(HeldUnit(unit, 0, 1, at, 64) for unit, at in self.units.items()),
            recent=tuple(self.recent[-16:]),
            pending_units=tuple((unit, 0) for unit in self.place or ()) if reduced else (),
        )

    # ------------------------------------------------------------ what it does

    def _leave(self) -> None:
        self.order, self.stage = None, "idle"

    def _lose_peer(self) -> None:
        self._say(RankFault(self.epoch, BROKEN, f"Traceback\n{BROKEN}"))
        self._leave()

    def _begin(self) -> None:
        """Settle what was under way, as `Engine.rebuild` does first."""
        order = self.order
        assert order is not None
        self.epoch, self.stage = order.epoch, "begun"
        commit = order.commit
        if (
            commit is not None
            and self.place is not None
            and self.phase is Phase.REDUCED
            and commit.iteration == self.iteration + 1
        ):
            self._apply(commit)
        self.phase, self.place = Phase.IDLE, None
        self.needed = frozenset()
        if not order.only_sends:
            self.needed = self._job.units_of(order, order.rank)

    def _build(self) -> None:
        self.stage = "built"

    def _bring(self) -> None:
        """Get one more unit, or see that all is there."""
        order = self.order
        assert order is not None
        places = (*order.layout.seats, *order.senders)
        for move in order.moves:
            if move.target == order.rank and self.units.get(move.unit) != order.iteration:
                source = self._job.at(places[move.source], order.epoch)
                if source is None or source.stage == "begun":
                    return
                if source.units.get(move.unit) != order.iteration:
                    self._refuse(f"{move.unit} from rank {move.source}")
                    return
                self.units[move.unit] = order.iteration
                return
        if order.initial:
            self.units |= dict.fromkeys(self.needed, 0)
        wrong = [unit for unit in self.needed if self.units.get(unit) != order.iteration]
        if wrong:
            self._refuse(f"{wrong} needed at {order.iteration}, here is {self.units}")
            return
        self.units = {unit: at for unit, at in self.units.items() if at == order.iteration}
        self.stage = "brought"

    def _refuse(self, why: str) -> None:
        self._job.refused.append(f"{self.address}: {why}")
        self._say(RankFault(self.epoch, f"StateMismatch: {why}", f"Traceback\nStateMismatch: {why}"))
        self._leave()

    def _take_place(self) -> None:
        order = self.order
        assert order is not None
        self.stage = "placed"
        if not order.only_sends:
            self.place, self.iteration = self.needed, order.iteration
        report = RebuildReport(order.epoch, 0.0, 0.0, 0.0, 0.0, 0.0, True, {"peer": 1})
        self._say(RankReady(order.epoch, report))

    def _reduce(self) -> None:
        self.phase = Phase.REDUCED

    def _commit(self) -> None:
        number = self.iteration + 1
        committed = self._apply(PendingCommit(number, 1.0, 0.1, 64))
        self._say(RankCommitted(self.epoch, committed))

    def _apply(self, pending: PendingCommit) -> Committed:
        assert self.place is not None
        for unit in self.place:
            self.units[unit] += 1
        self.units = {unit: at for unit, at in self.units.items() if unit in self.place}
        self.iteration, self.phase = pending.iteration, Phase.IDLE
        committed = Committed(pending.iteration, 1.0, 0.1, 1e-3, 64, 0.1)
        self.recent.append(committed)
        return committed


class HoldingJob(LoneJob):
    """Ranks whose every step, and every message of theirs, happens when the test says so."""

    def __init__(self, folder: Path, *overrides: str, active: int = 4, spares: int = 3) -> None:
        without_end = ("max_restarts_per_rank", "max_retries", "max_faults_per_node", "max_incidents")
        words = [f"recovery.{name}=1000" for name in without_end]
        words += ["train.train_iters=1000000", *overrides]
        super().__init__(folder, *words, active=active, spares=spares)
        self.processes: dict[RankAddress, Process] = {}
        self.refused: list[str] = []
        self.broken: set[str] = set()
        model = self.control._state.task.model
        self._kinds = {"tied": model.tied, "learned_positions": model.learned_positions}
        self._units = frozenset(all_units(model.num_layers, **self._kinds))

    async def __aenter__(self) -> HoldingJob:
        self.coordinator._board._planning.refresh = lambda epoch: None  # type: ignore[method-assign]  # slow
        self.coordinator.start(1)
        for node in self.nodes:
            self.coordinator.handle(node, Join(f"tcp://{node}:1", 5, 1, 0, True, (), ()))
        self.coordinator.tick(time.monotonic())
        self.coordinator.handle("n1", DataReady("tiny"))
        self.coordinator.tick(time.monotonic())
        await self.settle()
        return self

    @property
    def control(self) -> TaskControl:
        return self.coordinator._board.tasks["tiny"]

    def units_of(self, order: Rebuild, rank: int) -> frozenset[str]:
        return frozenset(units_of(order.layout.position(rank), **self._kinds))

    def at(self, seat: Seat, epoch: int) -> Process | None:
        """The process that is in a seat in an epoch."""
        for process in self.processes.values():
            here = process.alive and process.address.seat == seat and process.epoch == epoch
            if here and process.order is not None:
                return process
        return None

    def _post(self, node: str, body: Body) -> None:
        if node in self.broken:
            return
        match body:
            case StartRank(rank):
                process = self.processes[rank] = Process(self, rank)
                self._pid += 1
                process.outbox.append(RankStarted(rank, self._pid))
                process._say(RankHello(self._pid))
            case StopRank(rank) if rank in self.processes:
                self.processes[rank].inbox.append(body)
            case TellRank(rank, Cut() | RebuildOrder() as order) if rank in self.processes:
                self.processes[rank].inbox.append(order)

    # ------------------------------------------------------------ what happens

    async def breathe(self) -> None:
        """Let the coordinator's coroutines do what they can."""
        for _ in range(4):
            await asyncio.sleep(0)

    async def go(self, chance: random.Random) -> bool:
        """One step of one process; False where nothing can happen."""
        steps = [step for process in self.processes.values() for step in process.steps()]
        if not steps:
            return False
        chance.choice(steps)()
        await self.breathe()
        return True

    async def until_quiet(self, *silent: Process, starting: bool = True) -> None:
        """Go on as long as somebody else has something to say or to hear; nobody does what it is ordered.

        Parameters
        ----------
        starting
            Whether new processes say that they are there.
        """
        for _ in range(200):
            some = [p for p in self.processes.values() if p not in silent]
            if not starting:
                some = [p for p in some if p.alive is False or p.held or p.inbox]
            words = [step for p in some for step in p.words()]
            if words:
                words[0]()
            await self.breathe()

    async def until_ordered(self) -> None:
        """Go on until every process has its order for a new epoch; none has begun with it."""
        await self.until_quiet()
        epoch = self.control._state.epoch
        assert all(p.order is not None and p.order.epoch == epoch for p in self.living())

    def let_time_out(self) -> None:
        """The transition has taken too long."""
        current = self.control._transitions._current
        assert current is not None
        assert current._scope is not None
        current._scope.reschedule(0.0)

    async def settle(self, iterations: int = 2) -> None:
        """Go on until some iterations more are committed."""
        chance = random.Random(1)
        goal = self.furthest() + iterations
        for _ in range(5000):
            if self.furthest() >= goal and not self.coordinator._board.tasks["tiny"].in_transition:
                return
            if not await self.go(chance):
                await asyncio.sleep(0.002)
            assert self.cause is None if self.coordinator._board.over else True
        raise AssertionError("training does not go on")

    def living(self) -> list[Process]:
        """Processes that nobody has killed and nobody has ordered to be."""
        return [
            p
            for p in self.processes.values()
            if p.alive and not any(isinstance(order, StopRank) for order in p.inbox)
        ]

    def furthest(self) -> int:
        return max((at for p in self.living() for at in p.units.values()), default=0)

    def whole_without(self, *victims: Process) -> bool:
        """Whether each unit has a holder, up to date or able to be, that is none of these."""
        left = [p for p in self.living() if p not in victims]
        newest = max((at for p in left for at in p.units.values()), default=0)
        kept: set[str] = set()
        for p in left:
            kept |= {unit for unit, at in p.units.items() if at == newest}
            if p.phase is Phase.REDUCED and p.iteration == newest - 1:
                kept |= p.place or frozenset()
        return kept == self._units

    def break_node(self, node: str) -> None:
        """A node and all that runs on it is gone at once."""
        self.broken.add(node)
        for process in self.processes.values():
            if process.address.seat.node == node:
                process.alive = False
                process.inbox.clear()
                process.outbox.clear()
        self.notices(node, BROKEN_NODE)

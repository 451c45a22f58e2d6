"""Watches this node's ranks from outside: reads their phase pages, tells who hangs, takes their stacks."""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

import msgspec

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect import stacks as dumped_stacks
from unicron_hpc.detect.hangs import (
    PHASE_SLOWER,
    RANK_HANG,
    RANK_STOPPED,
    RANK_TRACED,
    HangWatch,
    Sample,
    Stuck,
    Suspicion,
)
from unicron_hpc.detect.phases import TRANSITION, WorkPhase
from unicron_hpc.detect.severity import Finding, Method
from unicron_hpc.detect.transition_work import TransitionWork
from unicron_hpc.runtime.orders import Rebuild, RebuildReport
from unicron_hpc.runtime.phase_page import Mark, Pace, PhasePage
from unicron_hpc.supervisor import stacks, threads
from unicron_hpc.supervisor.in_time import in_time
from unicron_hpc.supervisor.messages import Body, Noticed
from unicron_hpc.supervisor.rank_messages import AreYouThere, RankAddress
from unicron_hpc.supervisor.watch_messages import RankStacks, StacksDumped, Vital
from unicron_hpc.supervisor.zygote_client import RankProcess

log = logging.getLogger(__name__)

#: Seconds between two looks at the ranks.
INTERVAL = 0.1
#: A dump as old as this still shows the hang for which another one is asked.
SAME_DUMP = 1.0
#: Iterations between two questions whether a rank has become slower.
OFTEN = 8
#: Characters of a node's stacks that travel to the coordinator and its journal; the files have all.
TRAVELS = 16_000
#: How long the line of a program may take to be read.
SOURCE_LIMIT = 0.1


class Watched:
    """One process and what is known of it."""

    def __init__(self, address: RankAddress, process: RankProcess, page: PhasePage, watch: HangWatch) -> None:
        self.address = address
        self.process = process
        self.page = page
        self.watch = watch
        self.mark: Mark | None = None
        self.cut_epoch = 0
        self.layers = 0
        self.paces = 0
        self.traced = 0
        self.delays: dict[int, float] = {}
        self.taken: tuple[float, RankStacks] | None = None
        self.taking: asyncio.Task[RankStacks] | None = None
        self.deferred: list[Callable[[], None]] = []


class RankWatch:
    """All ranks of a node, seen from outside.

    Parameters
    ----------
    run_folder
        Where stacks are written, below `logs/`.
    recovery
        From when on something is too long.
    report
        Takes what the coordinator must know.
    ask
        Passes a question on to a rank.
    """

    def __init__(
        self,
        run_folder: Path,
        recovery: RecoverySettings,
        report: Callable[[Body], None],
        ask: Callable[[RankAddress, AreYouThere], None],
    ) -> None:
        self._logs = run_folder / "logs"
        self._recovery = recovery
        self._report = report
        self._ask = ask
        self._ranks: dict[RankAddress, Watched] = {}
        self._work: defaultdict[str, TransitionWork] = defaultdict(TransitionWork)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, address: RankAddress, process: RankProcess, page: PhasePage) -> None:
        """A process was started."""
        recovery = self._recovery
        watch = HangWatch(
            recovery.iteration_failure_factor,
            recovery.iteration_failure_floor,
            transition=recovery.transition_timeout / 2,
        )
        self._ranks[address] = Watched(address, process, page, watch)

    def remove(self, address: RankAddress) -> None:
        """It is gone."""
        self._ranks.pop(address, None)

    def cut(self, address: RankAddress, epoch: int) -> None:
        """The rank was told to stop for a new epoch: until it begins that, only the coordinator judges it.

        But for a process that is stopped: it may have told the coordinator what it holds before, and then
        all the others wait for it.
        """
        rank = self._ranks.get(address)
        if rank is not None:
            rank.cut_epoch = max(rank.cut_epoch, epoch)

    def ordered(self, address: RankAddress, order: Rebuild) -> None:
        """The rank was told to take a place."""
        rank = self._ranks.get(address)
        if rank is not None:
            rank.layers = 0 if order.only_sends else order.layout.position(order.rank).stage.num_layers
            rank.watch.transition_work = self._work[address.task].longest(rank.layers)

    def ready(self, address: RankAddress, report: RebuildReport) -> None:
        """It has taken it."""
        rank = self._ranks.get(address)
        if rank is not None and rank.layers and not report.chunk_kept:
            seconds = report.commit_seconds + report.chunk_seconds + report.state_seconds
            self._work[address.task].took(seconds, rank.layers)

    def answered(self, address: RankAddress, number: int) -> None:
        """The rank has answered a question."""
        rank = self._ranks.get(address)
        if rank is not None:
            rank.watch.answered(number)

    def defer(self, address: RankAddress, order: Callable[[], None]) -> bool:
        """Keep an order until the rank's stacks have been taken; False if none are being taken."""
        rank = self._ranks.get(address)
        if rank is None or rank.taking is None:
            return False
        rank.deferred.append(order)
        return True

    def vitals(self) -> tuple[Vital, ...]:
        """How every rank looks, for the next heartbeat."""
        found = []
        for rank in self._ranks.values():
            if rank.mark is not None:
                compute, samples = rank.watch.compute()
                mark = rank.mark
                at_work = rank.watch.at_work
                found.append(Vital(rank.address, mark.epoch, mark.iteration, at_work, compute, samples))
        return tuple(found)

    async def run(self) -> None:
        """Look at all ranks, again and again."""
        while True:
            await asyncio.sleep(INTERVAL)
            for rank in list(self._ranks.values()):
                self._look(rank)

    def dump(self, task: str, epoch: int) -> None:
        """Report the stacks of all ranks of a task; what is ordered of a rank meanwhile waits for its own."""
        taking = [self._stacks(rank) for rank in self._ranks.values() if rank.address.task == task]
        self._background(self._tell_stacks(task, epoch, taking))

    def close(self) -> None:
        """Look no more."""
        for task in self._tasks:
            task.cancel()

    # ------------------------------------------------------------ one look

    def _look(self, rank: Watched) -> None:
        mark = rank.page.mark()
        if mark is None:
            return
        moved = rank.mark is None or mark.count != rank.mark.count
        rank.mark = mark
        pace = rank.page.pace()
        if pace is not None and pace.count != rank.paces:
            self._finished(rank, pace)
        pid = rank.process.pid
        state = "" if moved else threads.state_of(pid, mark.thread)
        if mark.epoch < rank.cut_epoch and state != "T":
            return
        times = threads.times_of(pid, mark.thread)
        now = time.monotonic()
        sample = Sample(
            time=now,
            count=mark.count,
            phase=mark.phase,
            since=mark.since,
            state=state,
            cpu=times.cpu,
            delay=times.delay,
            others_delay=_longest_delay(rank),
        )
        if state == "t" and rank.traced != mark.count:
            rank.traced = mark.count
            self._warn(RANK_TRACED, f"{_name(rank)} is stopped by a debugger in {mark.phase.title}")
        suspicion = rank.watch.look(sample)
        if suspicion is not None:
            self._background(self._suspect(rank, mark, suspicion))
            return
        question = rank.watch.question()
        if question is not None:
            rank.delays = threads.delays(pid)
            self._ask(rank.address, AreYouThere(question))

    def _finished(self, rank: Watched, pace: Pace) -> None:
        rank.paces = pace.count
        rank.watch.finished(pace.epoch, pace.seconds, dict(zip(WorkPhase, pace.phases, strict=True)))
        if pace.count % OFTEN:
            return
        slower = rank.watch.slower(self._recovery.iteration_warning_factor)
        if slower:
            words = ", ".join(f"{phase.title} {times:.2f}" for phase, times in slower.items())
            self._warn(PHASE_SLOWER, f"{_name(rank)} takes longer than before, times: {words}")

    def _warn(self, finding: Finding, detail: str) -> None:
        self._report(Noticed(finding, Method.STATISTICS, detail, time.time()))

    # ------------------------------------------------------------ suspicion

    async def _suspect(self, rank: Watched, mark: Mark, suspicion: Suspicion) -> None:
        """Take the stacks of a rank that took too long; name it unless they show that it waits for others."""
        seen = time.time()
        if threads.is_dying(rank.process.pid):
            log.info("%s has met its end and is not gone yet", _name(rank))
            return
        if suspicion.sure:
            self._accuse(rank, mark, suspicion, "", seen)
            await self._stacks(rank)
            return
        taken = await self._stacks(rank)
        where = ""
        frames = dumped_stacks.stack(taken.stacks, mark.ident)
        if dumped_stacks.compiles(frames):
            log.info("%s compiles in the midst of %s", _name(rank), mark.phase.title)
            rank.watch.compiles()
            return
        if frames:
            frame = frames[0]
            source = await _source(frame)
            where = f"; at {frame.file}:{frame.line} in {frame.function}"
            if dumped_stacks.waits_for_peer(frame, source):
                log.info("%s waits for a peer in the midst of %s%s", _name(rank), mark.phase.title, where)
                rank.watch.waits_for_a_peer()
                return
        now = rank.page.mark()
        if now is not None and now.count == mark.count and not threads.is_dying(rank.process.pid):
            self._accuse(rank, mark, suspicion, where, seen)

    def _accuse(self, rank: Watched, mark: Mark, suspicion: Suspicion, where: str, seen: float) -> None:
        detail = (
            f"{_name(rank)}: {suspicion.stuck} for {suspicion.still:.2f} s in {mark.phase.title} of "
            f"{_at(mark)}; the limit is "
            f"{suspicion.limit:.2f} s, an iteration usually takes {suspicion.usual:.3f} s; "
            f"threads: {threads.describe(rank.process.pid)}{where}"
        )
        log.warning("%s", detail)
        finding = RANK_STOPPED if suspicion.stuck is Stuck.STOPPED else RANK_HANG
        epoch = max(mark.epoch, rank.cut_epoch)  # the one that it holds up
        self._report(Noticed(finding, Method.STATISTICS, detail, seen, rank.address, epoch))

    async def _tell_stacks(self, task: str, epoch: int, taking: Sequence[Awaitable[RankStacks]]) -> None:
        taken = await asyncio.gather(*taking)
        share = TRAVELS // max(len(taken), 1)
        short = (msgspec.structs.replace(one, stacks=one.stacks[:share]) for one in taken)
        self._report(StacksDumped(task, epoch, tuple(short)))

    def _stacks(self, rank: Watched) -> Awaitable[RankStacks]:
        """The rank's stacks, taken now or a moment ago."""
        if rank.taken is not None and time.monotonic() - rank.taken[0] < SAME_DUMP:
            ready: asyncio.Future[RankStacks] = asyncio.get_running_loop().create_future()
            ready.set_result(rank.taken[1])
            return ready
        if rank.taking is None:
            rank.taking = asyncio.create_task(self._take(rank))
        return asyncio.shield(rank.taking)

    async def _take(self, rank: Watched) -> RankStacks:
        seat = rank.address.seat
        file = self._logs / f"stacks-{seat.node}-{seat.slot}.txt"
        try:
            taken = await stacks.take(rank.address, rank.process, rank.page, file)
            rank.taken = (time.monotonic(), taken)
            self._background(stacks.keep(taken, file))
            return taken
        finally:
            rank.taking = None
            deferred, rank.deferred = rank.deferred, []
            for order in deferred:
                order()

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _longest_delay(rank: Watched) -> float:
    """The longest time since the last look that a thread of the process waited for a processor."""
    if not rank.watch.asking:
        return 0.0
    before, rank.delays = rank.delays, threads.delays(rank.process.pid)
    return max((delay - before.get(thread, delay) for thread, delay in rank.delays.items()), default=0.0)


def _at(mark: Mark) -> str:
    if mark.phase in TRANSITION:
        return f"the transition to epoch {mark.epoch}"
    return f"iteration {mark.iteration} (micro-batch {mark.micro_batch})"


def _name(rank: Watched) -> str:
    seat = rank.address.seat
    return (
        f"the process of task {rank.address.task} in slot {seat.slot} of {seat.node} (pid {rank.process.pid})"
    )


async def _source(frame: dumped_stacks.Frame) -> str:
    with contextlib.suppress(TimeoutError):
        return await in_time(lambda: linecache.getline(frame.file, frame.line), SOURCE_LIMIT)
    return ""

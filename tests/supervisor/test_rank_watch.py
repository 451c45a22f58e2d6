"""Real processes in bad states, watched from outside: who hangs is named, who waits is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.supervisor.events import within
from tests.supervisor.watched_zygote import EPOCH
from tests.supervisor.zygotes import Running
from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.hangs import RANK_HANG, RANK_STOPPED
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.runtime.orders import Rebuild, RebuildReport
from unicron_hpc.supervisor.local_ranks import LocalRanks
from unicron_hpc.supervisor.messages import Body, Noticed, RankExited, RankStarted
from unicron_hpc.supervisor.rank_messages import Cut, RankAddress, Stop
from unicron_hpc.supervisor.rank_watch import TRAVELS
from unicron_hpc.supervisor.watch_messages import StacksDumped, Vital


def rank(slot: int) -> RankAddress:
    return RankAddress("train", Seat("n1", slot), 1)


class Node:
    """A node's ranks, which train, and all that was reported."""

    def __init__(self, folder: Path, one: Running, recovery: RecoverySettings) -> None:
        self.reports: list[Body] = []
        self.ranks = LocalRanks(folder, one.zygote, self._report, recovery=recovery)
        self._news = asyncio.Event()

    def _report(self, body: Body) -> None:
        self.reports.append(body)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    def pid(self, slot: int) -> int:
        return next(b.pid for b in self.reports if isinstance(b, RankStarted) and b.rank == rank(slot))

    def named(self) -> dict[int, Noticed]:
        return {b.rank.seat.slot: b for b in self.reports if isinstance(b, Noticed) and b.rank is not None}

    def dumps(self) -> list[StacksDumped]:
        return [b for b in self.reports if isinstance(b, StacksDumped)]

    def vital(self, slot: int) -> Vital:
        return next(v for v in self.ranks.watch.vitals() if v.rank == rank(slot))

    async def measured(self, count: int) -> None:
        """Every rank has trained for long enough to be judged."""
        while [v.samples >= 4 for v in self.ranks.watch.vitals()] != [True] * count:
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def training(folder: Path, count: int, recovery: RecoverySettings | None = None) -> AsyncIterator[Node]:
    (folder / "logs").mkdir()
    one = Running(folder, "tests.supervisor.watched_zygote")
    one.zygote.start()
    here = Node(folder, one, recovery or RecoverySettings())
    watching = asyncio.create_task(here.ranks.watch.run())
    try:
        await one.warm.wait()
        for slot in range(count):
            here.ranks.start(rank(slot))
        await here.measured(count)
        yield here
        assert not watching.done()
    finally:
        watching.cancel()
        here.ranks.watch.close()
        one.zygote.close()
        assert await here.ranks.wait_empty(10.0)


def test_who_is_stuck_by_itself_is_named_and_who_waits_or_trains_is_not(tmp_path: Path) -> None:
    words = ["sleep", "loop", "hold the lock", "wait for a peer", "exchange"]
    stopped, trains = len(words), len(words) + 1

    async def work() -> None:
        async with training(tmp_path, trains + 1) as here:
            for slot, word in enumerate(words):
                here.ranks.tell(rank(slot), Stop(word))
            os.kill(here.pid(stopped), signal.SIGSTOP)
            guilty = {0, 1, 2, stopped}
            await here.until(lambda: here.named().keys() >= guilty)
            while here.vital(words.index("wait for a peer")).at_work:
                await asyncio.sleep(0.02)
            assert here.named().keys() == guilty
            assert {slot: n.finding for slot, n in here.named().items()} == {
                **dict.fromkeys((0, 1, 2), RANK_HANG),
                stopped: RANK_STOPPED,
            }
            assert all(n.epoch == EPOCH for n in here.named().values())
            assert "in wait" in here.named()[0].detail
            assert "in _iterate" in here.named()[1].detail
            assert "all-reduce" in here.named()[2].detail
            assert not here.vital(words.index("exchange")).at_work

            here.ranks.watch.dump("train", EPOCH)
            for slot in range(trains + 1):
                here.ranks.stop(rank(slot))  # not before its stacks have been taken
            await here.until(lambda: bool(here.dumps()))
            (dumped,) = here.dumps()
            taken = {stacks.rank.seat.slot: stacks for stacks in dumped.ranks}
            assert taken.keys() == set(range(trains + 1))
            for slot in (*range(len(words)), trains):
                assert "in _train" in taken[slot].stacks
            assert re.search(r"python[\d.]*: T", taken[stopped].state)
            assert sum(len(stacks.stacks) for stacks in dumped.ranks) <= TRAVELS
            await here.until(lambda: sum(isinstance(b, RankExited) for b in here.reports) == trains + 1)
            # None: its zygote got no processor time to tell it.
            assert {b.status for b in here.reports if isinstance(b, RankExited)} <= {-9, None}
            for slot in range(trains + 1):
                file = tmp_path / "logs" / taken[slot].file
                while not file.exists() or f"pid {here.pid(slot)}" not in file.read_text():
                    await asyncio.sleep(0.01)

    within(work())


def test_after_a_cut_only_the_coordinator_judges_unless_the_process_is_stopped(tmp_path: Path) -> None:
    async def work() -> None:
        async with training(tmp_path, 2) as here:
            here.ranks.tell(rank(0), Cut(EPOCH + 1))
            here.ranks.tell(rank(0), Stop("sleep"))
            trained = here.vital(1).iteration + 20  # much longer than a hang may last
            while here.vital(1).iteration < trained:
                await asyncio.sleep(0.02)
            here.ranks.tell(rank(1), Stop("sleep"))
            await here.until(lambda: 1 in here.named())
            assert here.named().keys() == {1}

            here.ranks.watch.dump("other", EPOCH)
            assert not here.ranks.watch.defer(rank(0), lambda: None)  # its own stacks are not being taken
            assert not here.ranks.watch.defer(rank(7), lambda: None)
            await here.until(lambda: bool(here.dumps()))
            assert here.dumps() == [StacksDumped("other", EPOCH, ())]

            os.kill(here.pid(0), signal.SIGSTOP)  # nobody else sees that before the transition's time is up
            await here.until(lambda: 0 in here.named())
            assert (here.named()[0].finding, here.named()[0].epoch) == (RANK_STOPPED, EPOCH + 1)

    within(work())


def test_in_a_transition_who_is_stuck_in_its_own_work_is_named_and_who_waits_or_reads_is_not(
    tmp_path: Path,
) -> None:
    words = ["build", "bring", "move", "load"]
    soon = RecoverySettings(iteration_failure_floor=0.2, transition_timeout=1.0)

    async def work() -> None:
        async with training(tmp_path, len(words), soon) as here:
            for slot, word in enumerate(words):
                here.ranks.tell(rank(slot), Cut(EPOCH + 1))
                here.ranks.tell(rank(slot), Stop(word))
            await here.until(lambda: here.named().keys() >= {0, 1})
            assert here.named().keys() == {0, 1}
            for noticed in here.named().values():
                assert (noticed.finding, noticed.epoch) == (RANK_HANG, EPOCH + 1)
                assert f"of the transition to epoch {EPOCH + 1}" in noticed.detail
                assert "in _iterate" in noticed.detail or "in wait" in noticed.detail

    within(work(), 60.0)


def test_what_places_took_others_is_the_measure_for_the_next(tmp_path: Path) -> None:
    def report(seconds: float, kept: bool) -> RebuildReport:
        return RebuildReport(1, seconds, 9.0, seconds, seconds, 9.0, kept, {})

    def order(layers: int) -> Rebuild:
        whole = Replica((Stage(0, layers - 1, (0,)),), 0, 1)
        return Rebuild(1, 0, Layout(layers, 1, 1, (whole,), (Seat("n1", 0),)), 0)

    async def work() -> None:
        async with training(tmp_path, 2) as here:
            watch = here.ranks.watch
            watch.ordered(rank(0), order(2))
            assert watch._ranks[rank(0)].watch.transition_work is None
            watch.ready(rank(0), report(5.0, kept=True))  # says nothing of who builds its chunk
            watch.ready(rank(0), report(1.0, kept=False))
            watch.ordered(rank(1), order(4))
            assert watch._ranks[rank(1)].watch.transition_work == 6.0

    within(work())

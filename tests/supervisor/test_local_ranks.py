"""The ranks of one node, forked by a real zygote: start, replace, stop, and the news of their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.supervisor.events import within
from tests.supervisor.zygotes import Running, running
from unicron_hpc.planner.layout import Seat
from unicron_hpc.supervisor.local_ranks import LocalRanks
from unicron_hpc.supervisor.messages import Body, RankExited, RankSaid, RankStarted
from unicron_hpc.supervisor.rank_messages import (
    Cut,
    RankAddress,
    RankFault,
    RankFinished,
    RankHello,
    Stop,
)

SEAT, OTHER = Seat("n1", 0), Seat("n1", 1)


def rank(incarnation: int = 1, seat: Seat = SEAT) -> RankAddress:
    return RankAddress("train", seat, incarnation)


class Node:
    """A node's ranks and everything that they have made it report."""

    def __init__(self, folder: Path, one: Running) -> None:
        self.one = one
        self.reports: list[Body] = []
        self.ranks = LocalRanks(folder, one.zygote, self._report)
        self._news = asyncio.Event()

    def _report(self, body: Body) -> None:
        self.reports.append(body)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    def about(self, address: RankAddress) -> list[Body]:
        return [body for body in self.reports if body.rank == address]  # type: ignore[union-attr]

    def pid(self, address: RankAddress) -> int:
        return next(body.pid for body in self.about(address) if isinstance(body, RankStarted))

    def exits(self, address: RankAddress) -> list[RankExited]:
        return [body for body in self.about(address) if isinstance(body, RankExited)]

    async def greeted(self, address: RankAddress) -> None:
        await self.until(lambda: any(isinstance(b, RankSaid) for b in self.about(address)))

    async def ended(self, address: RankAddress) -> RankExited:
        await self.until(lambda: bool(self.exits(address)))
        return self.exits(address)[0]


@contextlib.asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Node]:
    (folder / "logs").mkdir()
    async with running(folder) as one:
        made = Node(folder, one)
        yield made
        made.ranks.kill_all()
        assert await made.ranks.wait_empty(10.0)


def test_a_started_rank_is_reported_with_its_pid_and_then_its_words(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank())
            await here.greeted(rank())
            started, said = here.about(rank())
            assert isinstance(started, RankStarted)
            assert isinstance(said, RankSaid)
            assert said.said == RankHello(started.pid)
            (state,) = here.ranks.states()
            assert (state.address, state.pid) == (rank(), started.pid)

    within(work())


def test_a_repeated_order_to_start_starts_one_process(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank(2))
            here.ranks.start(rank(2))
            here.ranks.start(rank(1))
            await here.greeted(rank(2))
            here.ranks.start(rank(2))
            here.ranks.start(rank(1))
            here.ranks.start(rank(1, OTHER))
            await here.greeted(rank(1, OTHER))
            assert len([b for b in here.reports if isinstance(b, RankStarted)]) == 2

    within(work())


def test_a_newer_incarnation_replaces_the_process_in_the_seat(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank(1))
            await here.greeted(rank(1))
            here.ranks.start(rank(2))
            assert (await here.ended(rank(1))).status == -9
            await here.greeted(rank(2))
            assert [state.address for state in here.ranks.states()] == [rank(2)]
            assert not here.exits(rank(2))

    within(work())


def test_while_a_node_changes_hands_two_tasks_have_a_process_in_the_same_seat(tmp_path: Path) -> None:
    old, new = RankAddress("old", SEAT, 3), RankAddress("new", SEAT, 1)

    async def work() -> None:
        async with node(tmp_path) as here:
            for address in (old, new):
                here.ranks.start(address)
                await here.greeted(address)
            here.ranks.stop(old)
            await here.ended(old)
            assert [state.address for state in here.ranks.states()] == [new]

    within(work())


def test_an_order_to_stop_an_old_incarnation_does_nothing_to_the_new(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank(2))
            await here.greeted(rank(2))
            here.ranks.stop(rank(1))
            here.ranks.stop(rank(3))
            here.ranks.tell(rank(1), Stop("exit 1"))
            here.ranks.tell(rank(2), Cut(5))
            await here.until(lambda: RankFinished(5, 0) in [getattr(b, "said", None) for b in here.reports])
            here.ranks.stop(rank(2))
            assert (await here.ended(rank(2))).status == -9
            assert here.ranks.states() == ()

    within(work())


def test_a_rank_stopped_while_it_is_being_started_does_not_stay(tmp_path: Path) -> None:
    """The zygote may be slow to fork (or still import): the order to stop comes before there is a process."""

    async def work() -> None:
        async with node(tmp_path) as here:
            os.kill(here.one.pid, signal.SIGSTOP)
            here.ranks.start(rank(1))
            here.ranks.stop(rank(1))
            os.kill(here.one.pid, signal.SIGCONT)
            assert (await here.ended(rank(1))).status == -9
            assert here.ranks.states() == ()

    within(work())


def test_of_two_incarnations_being_started_only_the_newer_stays(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            os.kill(here.one.pid, signal.SIGSTOP)
            here.ranks.start(rank(1))
            await asyncio.sleep(0)
            here.ranks.start(rank(2))
            os.kill(here.one.pid, signal.SIGCONT)
            assert (await here.ended(rank(1))).status == -9
            await here.greeted(rank(2))
            assert [state.address for state in here.ranks.states()] == [rank(2)]

    within(work())


def test_the_end_is_reported_after_the_last_words(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank())
            await here.greeted(rank())
            here.ranks.tell(rank(), Stop("last 200"))
            ended = await here.ended(rank())
            assert ended.status == -9
            *_, last_words, end = here.about(rank())
            assert isinstance(last_words, RankSaid)
            assert last_words.said == RankFinished(199, 199)
            assert end is ended
            assert len(here.about(rank())) == 2 + 200 + 1

    within(work())


def test_the_end_of_the_log_travels_with_the_news(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank())
            here_log = tmp_path / "logs" / "rank-n1-0.log"
            here_log.write_text("x" * 10_000)
            await here.greeted(rank())
            here.ranks.tell(rank(), Stop("raise out of luck"))
            ended = await here.ended(rank())
            assert ended.status == 70
            assert ended.tail.endswith("RuntimeError: out of luck\n")
            assert len(ended.tail) <= 4000

    within(work())


def test_the_rank_knows_its_folder_task_and_seat(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank(1, OTHER))
            await here.greeted(rank(1, OTHER))
            for variable in ("UNICRON_RUN_FOLDER", "UNICRON_TASK", "UNICRON_SEAT"):
                here.ranks.tell(rank(1, OTHER), Stop(f"environment {variable}"))
            await here.until(lambda: len(here.about(rank(1, OTHER))) == 5)
            said = [
                b.said.error
                for b in here.reports
                if isinstance(b, RankSaid) and isinstance(b.said, RankFault)
            ]
            assert said == [str(tmp_path), "train", "n1:1"]

    within(work())


@pytest.mark.parametrize("what", ["garbage", "endless"])
def test_a_rank_that_talks_nonsense_is_ended_and_its_end_reported(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank())
            await here.greeted(rank())
            here.ranks.tell(rank(), Stop(what))
            assert (await here.ended(rank())).status == -9
            assert here.ranks.states() == ()

    within(work())


def test_a_rank_that_cannot_be_started_is_reported_as_ended(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.one.zygote.close()
            here.ranks.start(rank())
            ended = await here.ended(rank())
            assert (ended.pid, ended.status) == (0, None)
            assert "zygote.log" in ended.tail

    within(work())


def test_all_ranks_can_be_cut_at_once_and_the_epoch_is_remembered(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            for seat in (SEAT, OTHER):
                here.ranks.start(rank(1, seat))
                await here.greeted(rank(1, seat))
            here.ranks.tell(
                RankAddress("train", Seat("gone", 0), 1), Cut(8)
            )  # even one that finds nobody counts
            here.ranks.cut_all()
            cut = RankFinished(9, 0)
            await here.until(lambda: [getattr(b, "said", None) for b in here.reports].count(cut) == 2)
            assert here.ranks.newest_epoch == 9

    within(work())


def test_orders_to_a_rank_that_is_gone_are_dropped(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank())
            await here.greeted(rank())
            os.kill(here.pid(rank()), signal.SIGKILL)
            here.ranks.tell(rank(), Cut(2))  # its death is not known yet
            await here.ended(rank())
            here.ranks.tell(rank(), Cut(3))
            here.ranks.stop(rank())
            here.ranks.start(rank(2))
            await here.greeted(rank(2))

    within(work())

"""The ranks of one node, forked by a real zygote: start, replace, stop, and the news of their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.supervisor.events import within
from tests.supervisor.zygotes import Running, ended, running
from unicron_hpc.planner.layout import Seat
from unicron_hpc.supervisor import local_ranks
from unicron_hpc.supervisor.local_ranks import LocalRanks
from unicron_hpc.supervisor.messages import Body, RankExited, RankSaid, RankStarted
from unicron_hpc.supervisor.oom import MemoryKills
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

    def __init__(self, folder: Path, one: Running, memory: MemoryKills | None) -> None:
        self.one = one
        self.reports: list[Body] = []
        self.ranks = LocalRanks(folder, one.zygote, self._report, memory)
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


def said(body: Body) -> object:
    return body.said if isinstance(body, RankSaid) else None


@contextlib.asynccontextmanager
async def node(folder: Path, memory: MemoryKills | None = None) -> AsyncIterator[Node]:
    (folder / "logs").mkdir()
    async with running(folder) as one:
        made = Node(folder, one, memory)
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
            here.ranks.tell(rank(), Stop("last 4000"))
            ended = await here.ended(rank())
            assert ended.status == -9
            *_, last_words, end = here.about(rank())
            assert isinstance(last_words, RankSaid)
            assert last_words.said == RankFinished(3999, 3999)
            assert end is ended
            assert len(here.about(rank())) == 2 + 4000 + 1

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


def test_a_child_left_behind_with_the_socket_does_not_delay_the_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ranks, "LAST_WORDS_LIMIT", 3600.0)

    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank())
            await here.greeted(rank())
            here.ranks.tell(rank(), Stop("orphan"))
            await here.until(lambda: any(isinstance(said(b), RankFault) for b in here.about(rank())))
            (child,) = [int(s.error) for b in here.about(rank()) if isinstance(s := said(b), RankFault)]
            try:
                os.kill(here.pid(rank()), signal.SIGKILL)
                assert (await here.ended(rank())).status == -9
                assert not ended(child)
            finally:
                os.kill(child, signal.SIGKILL)

    within(work())


def test_only_what_was_written_since_the_last_report_explains_an_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank())
            await here.greeted(rank())
            here.ranks.tell(rank(), Stop("print an old trouble"))
            here.ranks.tell(rank(), Stop("environment HOME"))  # answered with a report of a fault
            await here.until(lambda: any(isinstance(said(b), RankFault) for b in here.about(rank())))
            while len(here.ranks._tasks) > 1:  # the log's length is being noted
                await asyncio.sleep(0)
            here.ranks.tell(rank(), Stop("raise a new one"))
            end = await here.ended(rank())
            assert "an old trouble" in end.tail
            assert "an old trouble" not in end.words
            assert end.words.endswith("RuntimeError: a new one\n")

    within(work())


def test_a_rank_is_known_by_its_process_also_just_after_its_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as here:
            for number in (1, 2):
                here.ranks.start(rank(number))
                await here.greeted(rank(number))
            await here.ended(rank(1))
            pids = {number: here.pid(rank(number)) for number in (1, 2)}
            assert here.ranks.by_pid() == {pids[1]: (rank(1), 0), pids[2]: (rank(2), 0)}

    within(work())


def test_what_a_dead_rank_had_sent_is_heard_although_its_socket_stays_open(tmp_path: Path) -> None:
    """The news of its end waits for what is in the socket's buffer, and for nothing that comes later."""

    async def work() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        theirs.sendall(b"x" * 150_000)  # the other end stays open
        heard = bytearray()

        async def listen() -> None:
            while True:
                heard.extend(await reader.readexactly(1000))

        await local_ranks._drained(asyncio.create_task(listen()), ours)
        assert len(heard) == 150_000
        writer.close()
        theirs.close()

    within(work())


def test_a_core_dump_is_reported(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core dumps are forbidden here")

    async def work() -> None:
        async with node(tmp_path) as here:
            here.ranks.start(rank())
            await here.greeted(rank())
            here.ranks.tell(rank(), Stop(f"core {tmp_path}"))
            end = await here.ended(rank())
            assert (end.status, end.core) == (-signal.SIGABRT, True)

    within(work())


def test_want_of_memory_is_asked_for_only_where_somebody_else_killed_the_rank(tmp_path: Path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 0\n")

    async def work() -> None:
        async with node(tmp_path, MemoryKills(counter)) as here:
            for number, (how, found) in enumerate((("raise x", False), ("last 1", True)), start=1):
                here.ranks.start(rank(number))
                await here.greeted(rank(number))
                counter.write_text(f"oom_kill {number}\n")
                here.ranks.tell(rank(number), Stop(how))
                end = await here.ended(rank(number))
                assert bool(end.memory) is found

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

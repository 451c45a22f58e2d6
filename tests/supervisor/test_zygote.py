"""A real zygote and its ranks, seen from the agent: born, told, killed, reaped, outlived."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervisor.events import until, within
from tests.supervisor.zygotes import ROOT, Running, adopting, ended, gone, running
from unicron_hpc.errors import UnicronError
from unicron_hpc.supervisor.rank_messages import (
    HEADER_BYTES,
    FromRank,
    RankFault,
    RankHello,
    Stop,
    frame,
    frame_length,
    from_rank_decoder,
)
from unicron_hpc.supervisor.zygote_client import RankProcess


class Talk:
    """The agent's end of a rank's socket."""

    def __init__(self, process: RankProcess) -> None:
        self.process = process

    async def hear(self) -> FromRank:
        return from_rank_decoder.decode(await self._exactly(frame_length(await self._exactly(HEADER_BYTES))))

    async def tell(self, words: str) -> None:
        await asyncio.get_running_loop().sock_sendall(self.process.socket, frame(Stop(words)))

    async def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await asyncio.get_running_loop().sock_recv(self.process.socket, count - len(data))
            if not more:
                raise EOFError
            data += more
        return data


async def born(one: Running, log: Path, **environment: str) -> Talk:
    """A rank that has said hello."""
    talk = Talk(await one.zygote.spawn(log, environment))
    assert await talk.hear() == RankHello(talk.process.pid)
    return talk


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_a_rank_is_known_when_it_is_gone(tmp_path: Path, code: int) -> None:
    async def work() -> None:
        async with running(tmp_path) as one:
            rank = await born(one, tmp_path / "rank.log")
            assert not rank.process.gone.is_set()
            await rank.tell(f"exit {code}")
            await rank.process.gone.wait()
            assert rank.process.status == code
            assert gone(rank.process.pid)

    within(work())


def test_where_memory_is_short_a_rank_is_taken_before_its_agent(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as one:
            rank = await born(one, tmp_path / "rank.log")
            own = int(Path("/proc/self/oom_score_adj").read_text())
            assert int(Path(f"/proc/{rank.process.pid}/oom_score_adj").read_text()) > own
            rank.process.kill()
            await rank.process.gone.wait()

    within(work())


def test_the_signal_that_killed_a_rank_is_known_when_it_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as one:
            ranks = [await born(one, tmp_path / "rank.log") for _ in range(3)]
            os.kill(ranks[0].process.pid, signal.SIGKILL)
            os.kill(ranks[1].process.pid, signal.SIGSEGV)
            ranks[2].process.kill()
            for rank, number in zip(ranks, (9, 11, 9), strict=True):
                await rank.process.gone.wait()
                assert rank.process.status == -number
            ranks[2].process.kill()  # again: harmless

    within(work())


def test_a_stopped_rank_is_killed_like_any_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as one:
            rank = await born(one, tmp_path / "rank.log")
            os.kill(rank.process.pid, signal.SIGSTOP)
            rank.process.kill()
            await rank.process.gone.wait()
            assert rank.process.status == -9

    within(work())


def test_a_rank_writes_to_its_own_log_which_is_appended_and_private(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"

    async def work() -> None:
        async with running(tmp_path) as one:
            for words in ("print first", "print second", "raise no such luck"):
                rank = await born(one, log)
                await rank.tell(words)
                if words.startswith("print"):
                    await rank.tell("exit 0")
                await rank.process.gone.wait()
            assert rank.process.status == 70

    within(work())
    lines = log.read_text().splitlines()
    assert lines[:2] == ["first", "second"]
    assert lines[-1] == "RuntimeError: no such luck"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert (tmp_path / "zygote.log").read_text() == ""


def test_a_rank_gets_its_own_variables_and_not_those_of_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as one:
            first = await born(one, tmp_path / "rank.log", UNICRON_SEAT="n1:0")
            second = await born(one, tmp_path / "rank.log")
            for rank, seat in ((first, "n1:0"), (second, "")):
                await rank.tell("environment UNICRON_SEAT")
                assert await rank.hear() == RankFault(0, seat, "")

    within(work())


def test_a_signal_to_the_group_does_not_end_the_zygote_but_a_rank(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as one:
            rank = await born(one, tmp_path / "rank.log")
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(one.pid, number)
            os.kill(rank.process.pid, signal.SIGTERM)
            await rank.process.gone.wait()
            assert rank.process.status == -signal.SIGTERM
            await born(one, tmp_path / "rank.log")

    within(work())


def test_when_the_zygote_dies_its_ranks_live_on_and_their_end_is_still_known(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as one:
            first, second = [await born(one, tmp_path / "rank.log") for _ in range(2)]
            one.warm.clear()
            os.kill(one.pid, signal.SIGKILL)
            await one.warm.wait()  # a new one
            await first.tell("environment HOME")
            await first.hear()
            await first.tell("exit 4")
            second.process.kill()
            for rank, status in ((first, 4), (second, -9)):
                await rank.process.gone.wait()
                assert rank.process.status == status
                assert gone(rank.process.pid)
            third = await born(one, tmp_path / "rank.log")
            await third.tell("exit 5")
            await third.process.gone.wait()
            assert third.process.status == 5

    with adopting():
        within(work())


def test_a_rank_asked_for_of_a_zygote_that_dies_is_refused_and_the_next_zygote_forks(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as one:
            os.kill(one.pid, signal.SIGSTOP)
            asked = asyncio.create_task(one.zygote.spawn(tmp_path / "rank.log", {}))
            await asyncio.sleep(0)  # the request is on its way
            one.warm.clear()
            os.kill(one.pid, signal.SIGKILL)
            with pytest.raises(UnicronError):
                await asked
            await one.warm.wait()
            await born(one, tmp_path / "rank.log")

    within(work())


def test_a_rank_may_be_asked_for_before_the_imports_are_done(tmp_path: Path) -> None:
    async def work() -> None:
        one = Running(tmp_path)
        one.zygote.start()
        try:
            assert not one.zygote.warm
            await born(one, tmp_path / "rank.log")
            assert one.zygote.warm
        finally:
            one.zygote.close()

    within(work())


def test_a_zygote_that_dies_again_and_again_is_given_up_and_the_log_is_named(tmp_path: Path) -> None:
    async def work() -> None:
        one = Running(tmp_path, module="tests.supervisor.no_such_module")
        one.zygote.start()
        try:
            refused = 0
            while refused < one.zygote.MAX_STARTS:
                with pytest.raises(UnicronError, match=r"zygote\.log"):
                    await one.zygote.spawn(tmp_path / "rank.log", {})
                refused += 1
            with pytest.raises(UnicronError, match="repeatedly"):
                await one.zygote.spawn(tmp_path / "rank.log", {})
        finally:
            one.zygote.close()

    within(work())
    assert (tmp_path / "zygote.log").read_text().count("No module named") == 5


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    async def work() -> list[int]:
        async with running(tmp_path) as one:
            ranks = [await born(one, tmp_path / "rank.log") for _ in range(2)]
            os.kill(ranks[1].process.pid, signal.SIGSTOP)
            pids = [one.pid, *(rank.process.pid for rank in ranks)]
        for rank in ranks:
            await rank.process.gone.wait()
        return pids

    with adopting():
        pids = within(work())
    assert [pid for pid in pids if not gone(pid)] == []


def test_whoever_waits_for_a_rank_when_all_is_closed_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        one = Running(tmp_path)
        one.zygote.start()
        asked = asyncio.create_task(one.zygote.spawn(tmp_path / "rank.log", {}))
        await asyncio.sleep(0)
        one.zygote.close()
        with pytest.raises(UnicronError):
            await asked

    within(work())


ORPHANS = """
import asyncio, sys
from pathlib import Path
from tests.supervisor.zygotes import running

async def work():
    async with running(Path(sys.argv[1])) as one:
        rank = await one.zygote.spawn(Path(sys.argv[1]) / "rank.log", {})
        print(one.pid, rank.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(work())
"""


def test_when_the_agent_is_killed_its_zygote_and_ranks_end_by_themselves(tmp_path: Path) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert agent.stdout is not None
    pids = [int(word) for word in agent.stdout.readline().split()]
    assert len(pids) == 2
    agent.kill()
    agent.wait()
    agent.stdout.close()
    until(lambda: all(map(ended, pids)))

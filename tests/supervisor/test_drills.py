"""Drills on one node: a real zygote's ranks and real processes are made to fail, on order only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.supervisor.events import within
from tests.supervisor.zygotes import running
from unicron_hpc.errors import UnicronError
from unicron_hpc.planner.layout import Seat
from unicron_hpc.supervisor import directory, drill_agent, drill_child, drill_client, drill_notes
from unicron_hpc.supervisor.drill_agent import Drills
from unicron_hpc.supervisor.drill_child import Task, family
from unicron_hpc.supervisor.drill_kinds import KINDS
from unicron_hpc.supervisor.keys import make_keys, read_keys
from unicron_hpc.supervisor.local_ranks import LocalRanks
from unicron_hpc.supervisor.messages import Body, Drill, RankExited, RankSaid, RankStarted
from unicron_hpc.supervisor.rank_messages import RankAddress, RankFault
from unicron_hpc.supervisor.transport import Transport

RANK = RankAddress("train", Seat("n1", 0), 1)
ORDER = "00ff" * 3


class Node:
    """A node with one rank that waits for orders."""

    def __init__(self, folder: Path, ranks: LocalRanks, said: asyncio.Queue[Body]) -> None:
        self.folder = folder
        self.said = said
        self.ranks = ranks
        self.drills = Drills(folder, "n1", True, ranks)
        self.pid = 0

    async def until(self, kind: type[Body]) -> Body:
        while not isinstance(said := await self.said.get(), kind):
            pass
        return said

    def note(self, state: drill_notes.State) -> drill_notes.Note | None:
        return drill_notes.read(self.folder, ORDER, state)

    def order(self, name: str, **fields: object) -> Drill:
        about = {"task": "train", "slot": 0, "pid": self.pid} if KINDS[name].of_rank else {}
        return msgspec.convert({"type": "Drill", "order": ORDER, "name": name, **about, **fields}, Drill)


@contextlib.asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Node]:
    (folder / "logs").mkdir()
    said: asyncio.Queue[Body] = asyncio.Queue()
    async with running(folder) as one:
        ranks = LocalRanks(folder, one.zygote, said.put_nowait)
        made = Node(folder, ranks, said)
        ranks.start(RANK)
        started = await made.until(RankStarted)
        assert isinstance(started, RankStarted)
        made.pid = started.pid
        await made.until(RankSaid)
        yield made
        ranks.kill_all()
        assert await ranks.wait_empty(10.0)


def test_a_rank_is_killed_once_however_often_the_order_comes(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as one:
            before = time.time()
            one.drills.take(one.order("kill"))
            gone = await one.until(RankExited)
            assert isinstance(gone, RankExited)
            assert gone.status == -9
            note = one.note("injected")
            assert note is not None
            assert before <= note.time <= gone.time
            one.drills.take(one.order("kill"))  # the process is gone: a new order would be refused
            assert one.note("refused") is None

    within(work())


def test_what_happens_in_a_rank_is_passed_on_to_it_with_its_iteration(tmp_path: Path) -> None:
    async def work() -> None:
        async with node(tmp_path) as one:
            one.drills.take(one.order("exception-forward", iteration=7))
            said = await one.until(RankSaid)
            assert isinstance(said, RankSaid)
            assert isinstance(said.said, RankFault)
            assert said.said.error == "exception-forward 7"
            assert one.note("armed") is not None
            assert one.note("injected") is None  # which only the rank can know

    within(work())


#: Drill, fields of the order, and what the refusal says.
SENSELESS: tuple[tuple[str, dict[str, object], str], ...] = (
    ("kill", {"pid": 1}, "process 1 is no rank"),
    ("kill", {"slot": 1}, "is no rank"),
    ("kill", {"task": "other"}, "is no rank"),
    ("busy", {"seconds": 1e9}, "an hour"),
    ("oom", {"text": "/nowhere"}, "no memory cgroup"),
    ("oom", {"text": "ODD"}, "no memory cgroup"),
    ("disk-full", {"seconds": 0.0}, "nobody would empty it"),
)


def test_an_order_that_cannot_be_meant_is_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill_agent, "MOST_BALLAST", 2**60)

    async def work() -> None:
        async with node(tmp_path) as one:
            for number, (name, fields, why) in enumerate(SENSELESS):
                order = msgspec.structs.replace(one.order(name), order=f"{number:08x}", **fields)
                if order.text == "ODD":
                    (tmp_path / "memory.max").write_text("plenty\n")
                    order = msgspec.structs.replace(order, text=str(tmp_path))
                one.drills.take(order)
                note = drill_notes.read(tmp_path, order.order, "refused")
                assert note is not None, name
                assert why in note.detail
            assert [rank.pid for rank in one.ranks.states()] == [one.pid]

    within(work())


class _NoRanks:
    def states(self) -> tuple[()]:
        return ()


def drills(folder: Path, *, allowed: bool = True) -> Drills:
    return Drills(folder, "n1", allowed, _NoRanks())  # type: ignore[arg-type]


def test_a_job_that_forbids_drills_makes_none(tmp_path: Path) -> None:
    drills(tmp_path, allowed=False).take(Drill(ORDER, "disk-full", seconds=1.0))
    note = drill_notes.read(tmp_path, ORDER, "refused")
    assert note is not None
    assert "recovery.drills" in note.detail


def test_a_disk_that_others_may_need_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill_agent, "MOST_BALLAST", 4096)
    drills(tmp_path).take(Drill(ORDER, "disk-full", seconds=1.0))
    note = drill_notes.read(tmp_path, ORDER, "refused")
    assert note is not None
    assert "others may want them" in note.detail


def test_an_order_whose_number_could_be_a_path_is_ignored(tmp_path: Path) -> None:
    drills(tmp_path).take(Drill("../../etc/x", "kill"))
    assert list(tmp_path.rglob("*")) == []


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as process:
        yield process
        os.killpg(process.pid, 9)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_node_is_stopped_whole_and_goes_on_when_its_time_is_over(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    async def until(condition: str, *pids: int) -> None:
        while {state_of(pid) for pid in pids} != {condition}:
            await asyncio.sleep(0.01)

    async def work() -> None:
        while len(pids := family(sleeper.pid)) < 2:
            await asyncio.sleep(0.01)
        task = Task(str(tmp_path), ORDER, "node-pause", "n1", sleeper.pid, True, 0.3, 0)
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "unicron_hpc.supervisor.drill_child",
            msgspec.json.encode(task).decode(),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        await until("T", *pids)
        await until("S", *pids)
        assert await child.wait() == 0

    within(work())
    made, ended = (drill_notes.read(tmp_path, ORDER, state) for state in ("injected", "ended"))
    assert made is not None
    assert ended is not None
    assert ended.time - made.time >= 0.3


def test_a_core_is_given_back_to_all_threads_that_there_are_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = {7: {0, 1}, 8: {0, 1}}

    def bind(thread: int, wanted: set[int]) -> None:
        if thread == 8:
            raise ProcessLookupError  # it has ended since it was listed
        cores[thread] = wanted

    listed = iter([{7, 8}, {7, 9}])
    monkeypatch.setattr(drill_child, "_threads", lambda pid: next(listed))
    monkeypatch.setattr(os, "sched_getaffinity", cores.__getitem__)
    monkeypatch.setattr(os, "sched_setaffinity", bind)
    monkeypatch.setattr(drill_child, "BURNERS", 0)
    drill_child._burn(Task(str(tmp_path), ORDER, "busy", "n1", 7, False, 0.0, 0), [7])
    assert (cores[7], cores[9]) == ({0, 1}, {0, 1})
    assert drill_notes.read(tmp_path, ORDER, "ended") is not None


class TestTheOwnersOrder:
    def test_reaches_the_agent_with_the_jobs_keys_and_the_answer_comes_back(self, tmp_path: Path) -> None:
        make_keys(tmp_path)

        async def work() -> None:
            agent = Transport("n1", read_keys(tmp_path), "127.0.0.1")
            await agent.start()
            try:
                directory.announce(tmp_path, "n1", agent.address)
                order = Drill(ORDER, "disk-full", seconds=5.0)
                client = asyncio.to_thread(drill_client.order, tmp_path, "n1", order)
                waiting = asyncio.create_task(client)
                envelope = await agent.receive()
                assert envelope.body == order
                drill_notes.write(tmp_path, ORDER, "disk-full", "n1", "refused", "not today")
                with pytest.raises(UnicronError, match="not today"):
                    await waiting
            finally:
                await agent.close(linger=0)

        within(work())

    def test_that_nobody_takes_ends_with_what_to_look_at(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_keys(tmp_path)
        monkeypatch.setattr(drill_client, "ANSWER_LIMIT", 0.1)
        with pytest.raises(UnicronError, match="did not take the order"):
            drill_client.order(tmp_path, "n1", Drill(ORDER, "kill"))

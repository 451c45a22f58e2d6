"""The coordinator's part in checkpoints: real files, parts from ranks, the manifest last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slurm.settings_for_tests import settings
from tests.supervisor.events import within
from tests.supervisor.examples import few
from unicron_hpc.config import TaskSettings
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.report.journal import EVENTS, Journal, read_lines
from unicron_hpc.runtime.manifest import describe_file, partial_name, read_manifest, verify
from unicron_hpc.supervisor import checkpoints
from unicron_hpc.supervisor.checkpoints import Checkpoints
from unicron_hpc.supervisor.rank_messages import CheckpointPart, FinishCheckpoint, RankAddress, ToRank

SEATS = (Seat("n1", 0), Seat("n2", 0))
LAYOUT = Layout(4, 1, 2, (Replica((Stage(0, 1, (0,)), Stage(2, 3, (1,))), 0, 8),), SEATS)
EPOCH = 3


def address(rank: int, incarnation: int = 1) -> RankAddress:
    return RankAddress("tiny", SEATS[rank], incarnation)


def task_of(folder: Path, keep: int = 2) -> TaskSettings:
    (task,) = settings(run_dir=folder).task_list()
    checkpoint = task.checkpoint.model_copy(update={"dir": folder / "checkpoints", "keep": keep})
    return task.model_copy(update={"checkpoint": checkpoint})


class Task:
    """The checkpoints of a task whose two ranks write small files."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.orders: list[tuple[RankAddress, ToRank]] = []
        self.settled = 0
        self._news = asyncio.Event()
        self.journal = Journal(folder)
        self.root = folder / "checkpoints"
        self.checkpoints = Checkpoints(
            task_of(folder, keep),
            self.journal,
            lambda rank, order: self.orders.append((rank, order)),
            self._settle,
        )
        self.checkpoints.begin_epoch(EPOCH, LAYOUT)

    def _settle(self) -> None:
        self.settled += 1
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    def part(self, rank: int, iteration: int, epoch: int = EPOCH, **fields: Any) -> CheckpointPart:
        """What a rank reports that has its file on disk."""
        directory = self.root / partial_name(iteration, epoch)
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"__{rank}_0.distcp"
        file.write_bytes(bytes([rank]) * (100 + rank))
        return CheckpointPart(epoch, iteration, str(directory), (describe_file(file),), **fields)

    def whole(self, finish: FinishCheckpoint) -> CheckpointPart:
        """What the rank reports that was told to finish."""
        metadata = Path(finish.directory) / ".metadata"
        metadata.write_bytes(b"names and shapes")
        files = (*finish.files, describe_file(metadata))
        return CheckpointPart(finish.epoch, finish.iteration, finish.directory, files, complete=True)

    async def save(self, iteration: int) -> None:
        for rank in range(2):
            self.checkpoints.on_part(address(rank), self.part(rank, iteration))
        rank_told, finish = self.orders[-1]
        assert isinstance(finish, FinishCheckpoint)
        settled = self.settled
        self.checkpoints.on_part(rank_told, self.whole(finish))
        await self.until(lambda: self.settled > settled)

    def events(self, kind: str) -> list[dict[str, Any]]:
        assert self.journal.flush_file(10.0)
        return [event for event in read_lines(self.folder / EVENTS) if event["type"] == kind]


def test_a_checkpoint_is_whole_once_all_parts_and_the_metadata_are_on_disk(tmp_path: Path) -> None:
    async def work() -> None:
        task = Task(tmp_path)
        task.checkpoints.on_part(address(1), task.part(1, 10))
        assert task.orders == []
        assert not task.checkpoints.saved(10)
        task.checkpoints.on_part(address(0), task.part(0, 10))
        ((told, finish),) = task.orders
        assert told == address(0)  # the first rank of the layout, whoever came last
        assert isinstance(finish, FinishCheckpoint)
        assert [file.name for file in sorted(finish.files, key=lambda f: f.name)] == [
            "__0_0.distcp",
            "__1_0.distcp",
        ]
        task.checkpoints.on_part(told, task.whole(finish))
        await task.until(lambda: task.settled == 1)
        final = task.root / "iter_0000010"
        assert verify(final).whole
        assert {file.name for file in read_manifest(final).files} == {
            ".metadata",
            "__0_0.distcp",
            "__1_0.distcp",
        }
        assert task.checkpoints.saved(10)
        assert task.checkpoints.newest == 10
        (saved,) = task.events("checkpoint_saved")
        assert (saved["iteration"], saved["path"], saved["epoch"]) == (10, str(final), EPOCH)
        assert saved["bytes"] == 100 + 101 + len(b"names and shapes")

    within(work())


def test_the_same_part_twice_is_one_part(tmp_path: Path) -> None:
    async def work() -> None:
        task = Task(tmp_path)
        for _ in range(2):
            task.checkpoints.on_part(address(0), task.part(0, 10))
        assert task.orders == []

    within(work())


@few
@given(order=st.permutations([(rank, iteration) for rank in range(2) for iteration in (10, 20, 30)]))
def test_parts_of_several_checkpoints_may_come_mixed(
    tmp_path_factory: pytest.TempPathFactory, order: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("mixed")

    async def work() -> None:
        task = Task(folder)
        for rank, iteration in order:
            task.checkpoints.on_part(address(rank), task.part(rank, iteration))
        finishes = [finish for _, finish in task.orders if isinstance(finish, FinishCheckpoint)]
        assert sorted(finish.iteration for finish in finishes) == [10, 20, 30]
        assert all(len(finish.files) == 2 for finish in finishes)

    within(work())


def test_parts_of_an_epoch_that_is_over_never_make_a_checkpoint(tmp_path: Path) -> None:
    async def work() -> None:
        task = Task(tmp_path)
        task.checkpoints.on_part(address(0), task.part(0, 10))
        task.checkpoints.begin_epoch(EPOCH + 1, LAYOUT)
        task.checkpoints.on_part(address(1), task.part(1, 10))
        assert task.orders == []
        task.checkpoints.on_part(address(0), task.part(0, 10, EPOCH + 1))
        task.checkpoints.on_part(address(1), task.part(1, 10, EPOCH + 1))
        assert len(task.orders) == 1

    within(work())


def test_a_part_that_could_not_be_written_ends_the_attempt_and_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        task = Task(tmp_path)
        task.checkpoints.on_part(address(0), task.part(0, 10))
        task.checkpoints.on_part(address(1), task.part(1, 10, error="OSError: No space left on device"))
        assert task.orders == []
        assert task.settled == 1
        (failed,) = task.events("checkpoint_failed")
        assert "No space left" in failed["error"]
        await task.save(20)
        assert task.checkpoints.saved(20)

    within(work())


def test_a_file_that_is_not_as_it_was_reported_is_not_sealed(tmp_path: Path) -> None:
    async def work() -> None:
        task = Task(tmp_path)
        for rank in range(2):
            task.checkpoints.on_part(address(rank), task.part(rank, 10))
        _, finish = task.orders[0]
        assert isinstance(finish, FinishCheckpoint)
        (Path(finish.directory) / "__1_0.distcp").write_bytes(b"short")
        task.checkpoints.on_part(address(0), task.whole(finish))
        await task.until(lambda: task.settled == 1)
        assert len(task.events("checkpoint_failed")) == 1
        assert not (task.root / "iter_0000010").exists()
        assert await task.checkpoints.find_newest(EPOCH) is None

    within(work())


def test_older_checkpoints_go_when_enough_newer_ones_are_whole(tmp_path: Path) -> None:
    async def work() -> None:
        task = Task(tmp_path, keep=2)
        for iteration in (10, 20, 30):
            await task.save(iteration)
        assert sorted(path.name for path in task.root.iterdir()) == ["iter_0000020", "iter_0000030"]

    within(work())


def test_the_newest_whole_one_is_found_and_each_one_passed_over_is_named(tmp_path: Path) -> None:
    async def work() -> None:
        task = Task(tmp_path, keep=3)
        for iteration in (10, 20, 30):
            await task.save(iteration)
        damaged = task.root / "iter_0000030" / "__0_0.distcp"
        damaged.write_bytes(b"x" * damaged.stat().st_size)  # same length, other content
        (task.root / "iter_0000020" / "manifest.json").unlink()
        found = await task.checkpoints.find_newest(EPOCH)
        assert found is not None
        assert found.iteration == 10
        skipped = {Path(event["path"]).name: event["reason"] for event in task.events("checkpoint_skipped")}
        assert set(skipped) == {"iter_0000030", "iter_0000020"}
        assert "checksum" in skipped["iter_0000030"]
        assert "manifest" in skipped["iter_0000020"]

    within(work())


def test_a_task_that_never_saved_has_nothing_to_go_back_to(tmp_path: Path) -> None:
    async def work() -> None:
        task = Task(tmp_path)
        assert await task.checkpoints.find_newest(EPOCH) is None
        assert not task.checkpoints.saved(1)

    within(work())


def test_a_search_that_a_file_server_never_answers_does_not_keep_the_agent_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, back = threading.Event(), threading.Event()
    waited_for: list[str] = []

    def hangs(folder: Path) -> None:
        began.set()
        waited_for.extend(["its end"] if not back.wait(30.0) else [])

    monkeypatch.setattr(checkpoints, "newest_whole", hangs)

    async def work() -> None:
        search = asyncio.create_task(Task(tmp_path).checkpoints.find_newest(EPOCH))
        while not began.is_set():
            await asyncio.sleep(0)
        search.cancel()

    within(work())
    back.set()
    assert not waited_for

"""A run that is asked to end: one more checkpoint of every task, as far as there is time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from unicron_hpc.report.journal import EVENTS, Journal, read_lines
from unicron_hpc.supervisor.last_checkpoint import LastCheckpoint
from unicron_hpc.supervisor.task_saves import TaskSaves


class Task:
    """Stands for a task's checkpoints."""

    def __init__(self, name: str, epoch: int | None = 3) -> None:
        self.name, self.epoch = name, epoch
        self.committed, self.newest, self.failures = 57, 50, 0
        self.orders = 0

    def order(self) -> None:
        self.orders += 1


class End:
    """A run with some tasks; `causes` has why it ended."""

    def __init__(self, folder: Path, *tasks: Task) -> None:
        self.causes: list[str] = []
        self.folder = folder
        self.journal = Journal(folder)
        self.tasks = [cast("TaskSaves", task) for task in tasks]
        self.last = LastCheckpoint(self.journal, self.causes.append)

    def begin(self, seconds: float = 20.0) -> None:
        self.last.begin(self.tasks, "SIGTERM received on n1", seconds, 3)

    def look(self, later: float = 0.0) -> None:
        self.last.look(time.monotonic() + later)


@pytest.fixture
def task() -> Task:
    return Task("a")


@pytest.fixture
def end(tmp_path: Path, task: Task) -> End:
    return End(tmp_path, task)


def test_nothing_happens_unasked(end: End, task: Task) -> None:
    end.look(later=1e9)
    assert (end.causes, task.orders) == ([], 0)


def test_it_ends_when_a_later_checkpoint_is_there(end: End, task: Task) -> None:
    end.begin()
    end.look()
    assert (end.causes, task.orders) == ([], 1)
    task.newest = 57  # had been begun before
    end.look()
    assert end.causes == []
    task.newest = 58
    end.look()
    assert end.causes == ["SIGTERM received on n1; task a is saved at iteration 58"]


def test_it_ends_when_the_time_is_up(end: End) -> None:
    end.begin(20)
    end.look(later=19)
    assert end.causes == []
    end.look(later=21)
    assert end.causes == [
        "SIGTERM received on n1; no last checkpoint of task a came about; its newest is of iteration 50"
    ]


def test_a_second_wish_makes_it_sooner_and_never_later(end: End, task: Task) -> None:
    end.begin(100)
    end.begin(10)
    end.begin(1000)
    assert task.orders == 1
    end.look(later=11)
    assert len(end.causes) == 1


def test_a_new_epoch_is_told_again(end: End, task: Task) -> None:
    end.begin()
    task.epoch = 4
    end.look()
    end.look()
    assert task.orders == 2


def test_a_checkpoint_that_fails_is_not_waited_for(end: End, task: Task) -> None:
    end.begin()
    task.failures = 1
    end.look()
    assert len(end.causes) == 1


def test_who_writes_no_checkpoints_ends_at_once(tmp_path: Path) -> None:
    end = End(tmp_path, Task("a", None))
    end.begin()
    assert end.causes == ["SIGTERM received on n1"]


def test_all_tasks_are_saved_and_one_that_finishes_meanwhile_needs_not(tmp_path: Path) -> None:
    first, second = Task("a"), Task("b")
    end = End(tmp_path, first, second)
    end.begin()
    first.newest = 60
    end.look()
    assert end.causes == []
    second.epoch = None
    end.look()
    assert end.causes == ["SIGTERM received on n1; task a is saved at iteration 60; task b is finished"]
    end.journal.close()
    (told,) = read_lines(tmp_path / EVENTS)
    assert (told["type"], told["tasks"], told["seconds"]) == ("stop_requested", ["a", "b"], 20.0)

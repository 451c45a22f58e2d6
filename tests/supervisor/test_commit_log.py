"""metrics.jsonl: every committed iteration once and in order."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.supervisor.examples import few
from unicron_hpc.report.journal import METRICS, read_lines
from unicron_hpc.runtime.orders import Committed
from unicron_hpc.supervisor.commit_log import CommitLog


def committed(iteration: int, loss: float = 1.0) -> Committed:
    return Committed(iteration, loss, 2.0, 1e-3, 512, 0.1)


#: All logs that tests have opened: what they wrote is on disk a moment later.
_opened: list[CommitLog] = []


def written(folder: Path, task: str = "train") -> list[tuple[int, int]]:
    """(iteration, epoch) of every line of a task."""
    for log in _opened:
        assert log.flush_file(10.0)
    return [(r["iteration"], r["epoch"]) for r in read_lines(folder / METRICS) if r["task"] == task]


def successor_of_all(folder: Path) -> CommitLog:
    for earlier in _opened:
        assert earlier.flush_file(10.0)
    log = CommitLog(folder)
    _opened.append(log)
    return log


def opened(folder: Path) -> CommitLog:
    """The log of a training that begins, or that goes on where a predecessor left it."""
    log = successor_of_all(folder)
    if not log.last("train"):
        log.roll_back("train", 0, 0)
    return log


@few
@given(st.integers(1, 12), st.data())
def test_every_iteration_is_written_once_and_in_order_whatever_the_reports(
    last: int, data: st.DataObject
) -> None:
    reports = data.draw(st.permutations([*range(1, last + 1), *data.draw(st.lists(st.integers(1, last)))]))
    change_at = data.draw(st.integers(0, len(reports)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = opened(folder)
        news = [log.add("train", 1, committed(n)) for n in reports[:change_at]]
        # A successor has no memory but the file, and the agents repeat all that they remember.
        log = opened(folder)
        log.add("train", 1, committed(log.last("train") + 1)) if log.last("train") < last else None
        for n in [*reports, *range(1, last + 1)]:
            log.add("train", 1, committed(n))
        log.close()
        assert [n for n, _ in written(folder)] == list(range(1, last + 1))
        assert sum(news) == len(set(reports[:change_at]))


def test_a_report_is_news_once(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.add("train", 1, committed(1))
    assert not log.add("train", 1, committed(1))
    assert log.add("train", 1, committed(3))
    assert not log.add("train", 1, committed(3))
    assert log.last("train") == 1
    assert log.add("train", 1, committed(2))
    assert log.last("train") == 3


def test_what_came_with_a_gap_before_it_is_written_at_the_end_in_order(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for n in (1, 5, 3):
        log.add("train", 1, committed(n))
    assert written(tmp_path) == [(1, 1)]
    log.flush("train")
    log.close()
    assert written(tmp_path) == [(1, 1), (3, 1), (5, 1)]


def test_whoever_is_no_longer_coordinator_writes_nothing_more(tmp_path: Path) -> None:
    """Its successor gets the same reports."""
    log = opened(tmp_path)
    log.add("train", 1, committed(1))
    log.add("train", 1, committed(3))
    log.close()
    log.add("train", 1, committed(2))
    assert written(tmp_path) == [(1, 1)]


def test_after_a_roll_back_the_iterations_are_written_again_from_the_new_epoch_on(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for n in (1, 2, 3, 5):
        log.add("train", 1, committed(n))
    log.roll_back("train", 2, 1)
    assert not log.add("train", 1, committed(2))  # late, of before
    assert not log.add("train", 1, committed(4))
    for n in (2, 3, 4, 5):
        assert log.add("train", 2, committed(n))
    log.close()
    assert written(tmp_path) == [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2), (5, 2)]


def test_a_successor_does_not_take_commits_that_were_rolled_back(tmp_path: Path) -> None:
    """Agents repeat what they remember of the time before the roll-back; only the file knows of that."""
    log = opened(tmp_path)
    for n in (1, 2, 3):
        log.add("train", 1, committed(n))
    log.roll_back("train", 2, 1)
    log.add("train", 2, committed(2))
    successor = successor_of_all(tmp_path)
    assert not successor.add("train", 1, committed(3, loss=9.0))
    assert successor.add("train", 3, committed(3))
    successor.close()
    assert written(tmp_path)[-2:] == [(2, 2), (3, 3)]


def test_a_report_of_a_newer_epoch_replaces_one_that_waited_for_its_predecessor(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.add("train", 1, committed(2))
    assert log.add("train", 2, committed(2))
    assert not log.add("train", 1, committed(2))
    log.add("train", 2, committed(1))
    assert written(tmp_path) == [(1, 2), (2, 2)]


def test_tasks_do_not_disturb_each_other(tmp_path: Path) -> None:
    log = successor_of_all(tmp_path)
    for task in ("a", "b"):
        log.roll_back(task, 0, 0)
    log.add("a", 1, committed(1))
    log.add("b", 4, committed(1))
    log.roll_back("a", 5, 0)
    log.add("b", 4, committed(2))
    log.add("a", 5, committed(1))
    assert written(tmp_path, "a") == [(1, 1), (1, 5)]
    assert written(tmp_path, "b") == [(1, 4), (2, 4)]


def test_a_line_carries_the_world_size_of_its_epoch_and_what_the_rank_said(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.begin_epoch("train", 1, 6)
    log.begin_epoch("train", 2, 4)
    log.add("train", 1, Committed(1, 0.5, 2.0, 1e-3, 512, 0.25))
    log.add("train", 2, committed(2))
    log.close()
    first, second = (json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines())
    assert first.pop("time") > 0
    assert first == {
        "task": "train",
        "iteration": 1,
        "loss": 0.5,
        "iteration_seconds": 0.25,
        "epoch": 1,
        "world_size": 6,
        "tokens": 512,
        "grad_norm": 2.0,
        "lr": 1e-3,
    }
    assert second["world_size"] == 4


def test_a_damaged_line_keeps_no_successor_from_office(tmp_path: Path) -> None:
    whole = {"task": "train", "iteration": 3, "epoch": 2}
    lines = [
        whole,
        {},
        {"task": "train"},
        {**whole, "iteration": None},
        {**whole, "iteration": 4, "epoch": []},
    ]
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert successor_of_all(tmp_path).last("train") == 3

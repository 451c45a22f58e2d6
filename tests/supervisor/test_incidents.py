"""The incidents of a task: one at a time, told to the journal, and given up when nothing helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.works import small_work
from tests.slurm.settings_for_tests import settings
from tests.supervisor.examples import few
from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.severity import LOST_CONNECTION, TASK_HANG, Blame, Finding, Method, Severity
from unicron_hpc.report.journal import EVENTS, Journal, read_lines
from unicron_hpc.runtime.orders import Committed
from unicron_hpc.supervisor.commit_log import CommitLog
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.incidents import Incidents
from unicron_hpc.supervisor.keystore import KeyStore
from unicron_hpc.supervisor.node_history import NodeHistory
from unicron_hpc.supervisor.rank_messages import RankAddress, ToRank
from unicron_hpc.supervisor.seats import Seats
from unicron_hpc.supervisor.task_state import TaskState

KILLED = Finding("killed (SIGKILL)", Severity.SEV2)
BROKEN = Finding("connection reset", Severity.SEV3, collateral=True)


class Desk:
    """What incidents use of a coordinator: its journal, its commits, its numbers. Nobody else is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder)
        self.commits = CommitLog(folder)
        self.history = NodeHistory()
        self.numbered = 0

    def next_incident(self) -> int:
        self.numbered += 1
        return self.numbered

    def changed(self) -> None:
        pass

    def tell(self, rank: RankAddress, order: ToRank) -> None:
        raise AssertionError("an incident gives no orders")

    def events(self, kind: str) -> list[dict[str, Any]]:
        assert self.journal.flush_file(10.0)
        return [event for event in read_lines(self.folder / EVENTS) if event["type"] == kind]


class Task:
    """A task with its incidents."""

    def __init__(self, folder: Path, max_retries: int = 2) -> None:
        (task,) = settings().task_list()
        self.desk = Desk(folder)
        self.state = TaskState(task, small_work(), Seats("tiny"), KeyStore(0, self.desk.tell))
        recovery = RecoverySettings(max_retries=max_retries)
        self.incidents = Incidents(self.state, self.desk, recovery)  # type: ignore[arg-type]

    def see(self, finding: Finding, node: str = "n1", rank: int | None = 0, detail: str = "") -> Evidence:
        evidence = Evidence(finding, Method.PROCESS, node, rank, detail)
        self.incidents.add(evidence)
        return evidence

    def attempts(self) -> int:
        """Count attempts until the incident is given up."""
        for attempt in range(1000):
            if self.incidents.try_again():
                return attempt
        raise AssertionError("never given up")

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event["error"], event["node"]) for event in self.desk.events("fault_detected")]


def test_all_that_happens_before_the_next_commit_is_one_incident(tmp_path: Path) -> None:
    task = Task(tmp_path)
    task.see(KILLED)
    task.see(LOST_CONNECTION, "n2", None)
    task.incidents.close(8)
    task.see(KILLED, "n3")
    assert [event["incident"] for event in task.desk.events("fault_detected")] == [1, 1, 2]
    (closed,) = task.desk.events("incident_closed")
    assert (closed["incident"], closed["iteration"], closed["task"]) == (1, 8, "tiny")


def test_the_log_says_where_a_rank_a_node_or_the_whole_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(tmp_path)
    task.see(KILLED, "n2", 3)
    task.see(LOST_CONNECTION, "n2", None)
    task.see(TASK_HANG, "", None)
    assert [record.getMessage() for record in caplog.records] == [
        "incident 1: killed (SIGKILL) on n2 (rank 3)",
        "incident 1: lost connection on n2 (node)",
        "incident 1: task hang in task tiny",
    ]


def test_an_incident_knows_the_iteration_that_was_committed_before_it(tmp_path: Path) -> None:
    task = Task(tmp_path)
    task.desk.commits.add(
        "tiny", 0, Committed(iteration=7, loss=1.0, grad_norm=0.1, lr=1e-3, tokens=64, seconds=1.0)
    )
    task.see(KILLED)
    assert task.state.incident is not None
    assert task.state.incident.iteration == 7


def test_a_fault_is_told_with_its_place_its_severity_and_the_end_of_its_text(tmp_path: Path) -> None:
    task = Task(tmp_path)
    evidence = task.see(KILLED, "n2", 3, "x" * 5000 + "the end")
    (told,) = task.desk.events("fault_detected")
    assert (told["node"], told["rank"], told["severity"], told["method"]) == (
        "n2", 3, "SEV2", "process supervision",
    )  # fmt: skip
    assert told["fault_time"] == evidence.time
    assert told["evidence"].endswith("the end")
    assert len(told["evidence"]) == 2000


def test_a_commit_without_an_incident_closes_nothing(tmp_path: Path) -> None:
    task = Task(tmp_path)
    task.incidents.close(8)
    assert task.desk.events("incident_closed") == []


class TestANodesHistory:
    def test_counts_an_incident_once_though_it_was_opened_again(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        task.see(KILLED, "n2")
        incident = task.state.incident
        assert incident is not None
        task.incidents.close(5)
        task.incidents.reopen(incident)
        task.incidents.close(6)
        assert task.desk.history.count("n2", 0.0) == 1

    def test_counts_an_incident_once_though_a_report_of_it_comes_late(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        budget = RecoverySettings().max_faults_per_node
        for iteration in range(budget):
            task.see(KILLED, "n2")
            task.incidents.close(iteration + 1)
        late = Evidence(Finding("Xid 31", Severity.SEV2, Blame.PROCESS), Method.PROCESS, "n2", 0, "")
        incident = task.incidents.add_late(late)
        assert incident is not None
        assert task.incidents.decide(incident, late, 0).rule == "new process"


class TestCollateral:
    def test_is_no_fault_while_somebody_may_know_better(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        task.see(BROKEN)
        assert task.told == []
        task.see(KILLED, "n2")
        task.incidents.settle()
        assert task.told == [("killed (SIGKILL)", "n2")]

    def test_is_the_fault_itself_when_nobody_knows_better(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        task.see(BROKEN, "n3", 2)
        task.see(BROKEN, "n4", 3)
        task.incidents.settle()
        assert task.told == [("connection reset", "n3")]

    def test_is_told_once_however_many_attempts_its_incident_takes(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        task.see(BROKEN)
        task.incidents.settle()
        task.see(BROKEN)  # the connection breaks again before anything is committed
        task.incidents.settle()
        assert task.told == [("connection reset", "n1")]
        task.incidents.close(5)
        task.see(BROKEN, "n2")
        task.incidents.settle()
        assert task.told == [("connection reset", "n1"), ("connection reset", "n2")]

    def test_without_any_there_is_nothing_to_settle(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        task.incidents.settle()
        assert task.told == []


class TestTheBudget:
    def test_a_planned_change_is_no_incident_and_has_none(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        assert all(task.incidents.try_again() is None for _ in range(50))

    @few
    @given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
    def test_each_level_has_its_retries_and_each_place_one_more(
        self, tmp_path_factory: Any, retries: int, causes: int, collateral: int
    ) -> None:
        task = Task(tmp_path_factory.mktemp("budget"), max_retries=retries)
        for _ in range(collateral + (causes == 0)):
            task.see(BROKEN)
        for number in range(causes):
            task.see(KILLED, f"n{number}")
        assert task.attempts() == 2 * (retries + 1) + causes

    def test_the_same_place_again_and_again_is_one(self, tmp_path: Path) -> None:
        task = Task(tmp_path, max_retries=0)
        for _ in range(5):
            task.see(KILLED, "n1", 0)
        task.see(KILLED, "n1", 1)
        assert task.attempts() == 4

    def test_a_commit_gives_all_attempts_back(self, tmp_path: Path) -> None:
        task = Task(tmp_path)
        for _ in range(3):
            task.see(KILLED)
            assert task.attempts() == 7
            task.incidents.close(5)

    def test_giving_up_names_the_likeliest_cause_with_its_own_words(self, tmp_path: Path) -> None:
        task = Task(tmp_path, max_retries=0)
        task.see(BROKEN, detail="reset by peer")
        task.see(KILLED, detail="out of luck")
        while (given_up := task.incidents.try_again()) is None:
            pass
        cause, detail = given_up
        assert cause == ("task tiny committed no iteration in 3 transitions; first cause: killed (SIGKILL)")
        assert detail == "out of luck"

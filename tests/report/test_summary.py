"""What a run did and where its time went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.report.journal import EVENTS, METRICS, Appender
from unicron_hpc.report.summary import summarize, write_summary


def commit(iteration: int, time: float, seconds: float = 1.0, task: str = "train") -> dict[str, Any]:
    return {"task": task, "iteration": iteration, "iteration_seconds": seconds, "time": time}


def fault(incident: int, error: str, **fields: Any) -> dict[str, Any]:
    known = {"node": "n2", "rank": 1, "severity": "SEV2"}
    return {"type": "fault_detected", "incident": incident, "error": error, **known, **fields}


def closed(incident: int, seconds: float) -> dict[str, Any]:
    return {"type": "incident_closed", "incident": incident, "seconds": seconds}


def test_a_run_without_faults_loses_only_its_start() -> None:
    summary = summarize([], [commit(n, 10.0 + n) for n in range(1, 6)], 0.0, 20.0)
    assert summary["iterations"] == {"train": 5}
    assert summary["incidents"] == []
    assert summary["time_lost"] == {"startup": 10.0}
    assert summary["goodput"] == pytest.approx(5 / 20)
    assert summary["wall_seconds"] == 20.0


def test_a_run_that_never_committed_was_all_start() -> None:
    summary = summarize([], [], 5.0, 25.0)
    assert summary["time_lost"] == {"startup": 20.0}
    assert (summary["goodput"], summary["iterations"]) == (0.0, {})


def test_the_first_piece_of_evidence_names_an_incident_and_its_end_says_how_long_it_took() -> None:
    events = [
        {"type": "job_started"},
        fault(1, "killed (SIGKILL)"),
        fault(1, "transition timed out"),
        closed(1, 1.5),
        fault(2, "killed (SIGKILL)", rank=3),
        closed(2, 0.5),
        fault(3, "lost connection", rank=None, node="n4"),
    ]
    summary = summarize(events, [commit(1, 11.0)], 10.0, 30.0)
    assert [(i["incident"], i["error"], i["rank"], i["seconds"]) for i in summary["incidents"]] == [
        (1, "killed (SIGKILL)", 1, 1.5),
        (2, "killed (SIGKILL)", 3, 0.5),
        (3, "lost connection", None, None),
    ]
    assert summary["time_lost"] == {"startup": 0.0, "killed (SIGKILL)": 2.0}


def test_an_incident_that_was_opened_again_took_all_its_parts() -> None:
    summary = summarize([fault(1, "ECC error"), closed(1, 1.5), closed(1, 0.5)], [], 10.0, 30.0)
    assert [incident["seconds"] for incident in summary["incidents"]] == [2.0]
    assert summary["time_lost"]["ECC error"] == 2.0


def test_an_end_whose_beginning_is_lost_is_counted_as_unknown() -> None:
    summary = summarize([closed(4, 2.0)], [], 0.0, 10.0)
    assert summary["time_lost"]["unknown"] == 2.0
    assert summary["incidents"][0]["incident"] == 4


def test_iterations_that_were_rolled_back_do_not_count_as_good() -> None:
    lines = [commit(n, float(n)) for n in (1, 2, 3, 4)] + [commit(n, 10.0 + n) for n in (2, 3)]
    summary = summarize([], lines, 0.0, 10.0)
    assert summary["iterations"] == {"train": 3}
    assert summary["goodput"] == pytest.approx(3 / 10)


def test_of_several_tasks_the_busiest_decides() -> None:
    lines = [commit(1, 2.0, 1.0, "a"), commit(1, 2.0, 1.5, "b"), commit(2, 4.0, 2.0, "b")]
    summary = summarize([], lines, 0.0, 7.0)
    assert summary["iterations"] == {"a": 1, "b": 2}
    assert summary["goodput"] == pytest.approx(0.5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 100))), st.floats(0, 1e6), st.floats(0, 1e6))
def test_goodput_is_a_share_and_no_time_is_negative(
    lines: list[tuple[int, float]], started: float, length: float
) -> None:
    metrics = [commit(n, started + seconds, seconds) for n, seconds in lines]
    summary = summarize([], metrics, started, started + length)
    assert 0.0 <= summary["goodput"] <= 1.0
    assert all(seconds >= 0 for seconds in summary["time_lost"].values())


def test_a_failed_run_has_a_summary_too_with_its_cause(tmp_path: Path) -> None:
    for name, record in ((EVENTS, fault(1, "out of memory")), (METRICS, commit(3, 5.0))):
        appender = Appender(tmp_path / name)
        appender.append(record)
        appender.close()
    with open(tmp_path / EVENTS, "a") as file:
        file.write('{"half": ')
    write_summary(tmp_path, state="failed", exit_code=1, cause="out of memory in rank 1", started=1.0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["state"], summary["exit_code"], summary["cause"]) == (
        "failed",
        1,
        "out of memory in rank 1",
    )
    assert summary["iterations"] == {"train": 3}
    assert summary["started"] == 1.0 < summary["finished"]


def test_the_summary_of_a_requeued_job_is_that_of_its_last_attempt(tmp_path: Path) -> None:
    before, again = {"type": "job_started", "time": 10.0}, {"type": "job_started", "time": 100.0}
    events = [
        before,
        fault(1, "killed (SIGKILL)"),
        closed(1, 5.0),
        again,
        fault(1, "ECC error"),
        closed(1, 2.0),
    ]
    lines = [commit(n, 10.0 + 8 * n, 8.0) for n in range(1, 11)] + [commit(8, 112.0, 2.0)]
    for name, records in ((EVENTS, events), (METRICS, lines)):
        appender = Appender(tmp_path / name)
        for record in records:
            appender.append(record)
        appender.close()
    write_summary(tmp_path, state="finished", exit_code=0, cause="", started=100.0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(i["error"], i["seconds"]) for i in summary["incidents"]] == [("ECC error", 2.0)]
    assert summary["time_lost"] == {"startup": 10.0, "ECC error": 2.0}
    assert summary["iterations"] == {"train": 8}
    assert summary["goodput"] == pytest.approx(2.0 / summary["wall_seconds"])


@pytest.mark.parametrize(
    "damaged", [{}, {"task": "train"}, {"task": "train", "iteration": None}, {"incident": 1}]
)
def test_a_damaged_record_costs_no_summary(damaged: dict[str, Any]) -> None:
    events = [{"type": "fault_detected", **damaged}, {"type": "incident_closed", **damaged}, {"incident": []}]
    summary = summarize([*events, fault(2, "ECC error")], [damaged, commit(1, 11.0)], 10.0, 30.0)
    assert summary["iterations"] == {"train": 1}
    assert summary["incidents"][-1]["error"] == "ECC error"

"""What bench/detection counts: time from the true moment, hangs beyond three iterations, false alarms."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from common.detected import Alarms, incidents_since, injection, mean_iteration

Record = dict[str, Any]


def commits(*times: float) -> list[Record]:
    return [{"time": time, "iteration": number} for number, time in enumerate(times, 1)]


def fault(incident: int, node: str = "n2", rank: int | None = 1) -> Record:
    return {"type": "fault_detected", "incident": incident, "node": node, "rank": rank, "error": "hang"}


TOLD: Record = {
    "drill": "stop-rank",
    "node": "n2",
    "rank": 1,
    "injected": 10.0,
    "detected": 0.9,
    "right": True,
    "wrong": [],
    "lost": [],
    "drained": [],
}


def test_the_pace_is_that_before_the_fault() -> None:
    records = commits(9.0, 9.2, 9.4, 9.6, 15.0)
    assert mean_iteration(records, 10.0) == pytest.approx(0.2)


def test_a_hang_counts_from_three_iterations_on() -> None:
    made = injection("hang", TOLD, [fault(1), fault(2)], commits(9.0, 9.2, 9.4), 1, node_is_bad=False)
    assert made.detection == pytest.approx(0.9)
    assert made.over_three == pytest.approx(0.3)
    assert (made.named, made.incidents, made.drained) == (True, (2,), 0)


def test_a_fault_that_nobody_noticed_took_for_ever() -> None:
    told = {**TOLD, "detected": None, "right": False, "wrong": ["rank 1 on n2 was not named"]}
    made = injection("hang", told, [], commits(9.0, 9.2), 0, node_is_bad=False)
    assert made.detection == float("inf")
    assert not made.named


def test_a_healthy_node_is_any_but_one_that_was_made_to_fail_whole() -> None:
    told = {**TOLD, "lost": ["n2"], "drained": ["n2", "n3"]}
    records = commits(9.0, 9.2)
    assert injection("x", told, [], records, 0, node_is_bad=True).drained == 1
    assert injection("x", told, [], records, 0, node_is_bad=False).drained == 2


def test_incidents_are_those_of_faults_after_the_order() -> None:
    events = [fault(1), fault(2), fault(2), {"type": "plan_chosen", "incident": 9}, fault(3)]
    assert incidents_since(events, 1) == (2, 3)


def test_alarms_are_the_incidents_that_nobody_made_each_once() -> None:
    alarms = Alarms()
    alarms.look("a run", [fault(1), fault(2, rank=None), fault(2), fault(3, node="")], [1])
    assert alarms.false == ["a run: hang (n2)", "a run: hang (rank 1 on )"]

"""Events as sentences. The journal in `journals/` is of a real run: a rank was killed, later a node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.report.journal import read_lines
from unicron_hpc.report.sentences import TOLD, brief, names, seconds, sentence, size

RUN = list(read_lines(Path(__file__).parent / "journals" / "rank_killed_then_node_lost.jsonl"))
SOURCES = Path(__file__).parents[2] / "unicron_hpc"


def told(kind: str, at: int = 0) -> str:
    """The sentence of the run's `at`-th event of a kind."""
    return sentence([event for event in RUN if event["type"] == kind][at])


def test_no_event_of_a_real_run_is_shown_as_bare_fields() -> None:
    assert [event["type"] for event in RUN if sentence(event).startswith(event["type"])] == []


def test_every_type_that_the_package_writes_has_a_sentence() -> None:
    written = set()
    for path in SOURCES.rglob("*.py"):
        found = re.findall(r"journal\.write\(\s*\"(\w+)\"", path.read_text("utf-8"))
        written.update(found)
    assert len(written) > 15
    assert written - TOLD == set()


def test_a_fault_says_what_where_how_noticed_and_what_is_done() -> None:
    assert told("fault_detected") == (
        "incident 1: killed (SIGKILL), rank 1 on n2; noticed by process supervision;"
        " SEV2: start a new process"
    )
    assert told("fault_detected", 1).startswith("incident 2: lost connection, n4; noticed by node health")


def test_a_recovery_says_how_long_it_took_and_where_state_came_from() -> None:
    assert told("transition_finished", 1) == (
        "task gpt-tiny computes in epoch 2 after 0.10 s; state: 2.1 MB from peers"
    )
    assert told("incident_closed") == (
        "incident 1 is over: iteration 59 of task gpt-tiny is committed, 0.28 s after the first sign"
    )


def test_state_that_nobody_had_any_more_is_said_to_begin_anew() -> None:
    event = {
        "type": "transition_finished", "epoch": 2, "task": "a", "incident": 1, "seconds": 0.5,
        "state_sources": {"local": 5, "seed": 49775616},
    }  # fmt: skip
    assert sentence(event) == (
        "task a computes in epoch 2 after 0.50 s; state: 49.8 MB of initial values;"
        " there was no checkpoint: training starts over"
    )
    assert "starts over" not in sentence({**event, "incident": None})


def test_a_decision_says_about_whom_it_is() -> None:
    event = {"type": "action_chosen", "incident": 1, "node": "n2", "rank": 1, "action": "a new process"}
    assert sentence(event) == "incident 1: rank 1 on n2: a new process"


def test_a_refused_drain_is_no_drain() -> None:
    refused = {"type": "drain_result", "node": "n3", "drained": False, "message": "Slurm says no"}
    assert sentence(refused) == "n3 is not drained: Slurm says no"


def test_a_job_says_who_trains_and_who_waits() -> None:
    assert told("job_started") == "job 4711 begins: n1, n2, n3 and n4 train; spares: n5"


def test_a_corrected_verdict_says_so_and_names_who_only_suffered() -> None:
    verdict = {
        "type": "verdict",
        "incident": 3,
        "error": "ECC error",
        "suspects": [7],
        "nodes": ["n8"],
        "victims": [0],
        "collateral": [2, 0],
        "corrects": True,
    }
    assert sentence(verdict) == (
        "incident 3: the cause is now ECC error, rank 7 on n8; ranks 0 and 2 only suffered from it"
    )


@pytest.mark.parametrize(
    "damaged", [{}, {"plans": 1}, {"node": None, "factor": "x"}, {"node": 1, "factor": None}]
)
def test_a_damaged_event_is_shown_as_it_is(damaged: dict[str, Any]) -> None:
    assert sentence({"type": "slow_node", **damaged}).startswith("slow_node")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*sorted(TOLD), "of another version"]),
    st.dictionaries(
        st.sampled_from(["node", "rank", "incident", "seconds", "nodes", "x"]), st.none() | st.text()
    ),
)
def test_an_event_of_another_version_is_shown_and_not_an_error(kind: str, fields: dict[str, Any]) -> None:
    assert sentence({"time": 0.0, "type": kind, "epoch": 1, **fields})


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0042, "0.0042 s"), (0.28, "0.28 s"), (12.4, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")],
)
def test_durations_are_as_exact_as_people_need(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (2095872, "2.1 MB"), (3e12, "3 TB"), (4e15, "4e+03 TB")]
)
def test_sizes_are_in_powers_of_a_thousand(count: float, text: str) -> None:
    assert size(count) == text


def test_the_last_words_are_the_line_that_says_something() -> None:
    assert brief("Traceback\n  x\nValueError: no\n\n") == "ValueError: no"
    assert brief("a.py:3: UserWarning: old\n  warnings.warn(\n") == "a.py:3: UserWarning: old"
    assert brief("") == ""
    assert names([]) == "none"

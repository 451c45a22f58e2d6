"""What came of a drill: read from journals as the coordinator writes them."""

from __future__ import annotations

from typing import Any

import pytest

from unicron_hpc.report.drill_outcome import Culprit, named_rightly, outcome, wronged

Event = dict[str, Any]
MADE = 100.0
RANK = Culprit("n2", 1)


def event(kind: str, time: float, **fields: Any) -> Event:
    return {"type": kind, "time": time, "epoch": 1, "task": "train", **fields}


def runs(time: float, pids: dict[int, int], nodes: dict[int, str] | None = None) -> Event:
    """An epoch that runs: rank -> pid, one rank on each node n1, n2, ... unless told otherwise."""
    where = nodes or {rank: f"n{rank + 1}" for rank in pids}
    ranks = [
        {"task": "train", "node": where[rank], "slot": 0, "rank": rank, "pid": pid, "replica": 0, "stage": 0}
        for rank, pid in pids.items()
    ]
    return event("transition_finished", time, ranks=ranks, seconds=0.1)


def fault(time: float, node: str, rank: int | None, error: str = "killed (SIGKILL)", **fields: Any) -> Event:
    said = {"method": "process supervision", "severity": "SEV2", "incident": 1, **fields}
    return event("fault_detected", time, node=node, rank=rank, error=error, **said)


BEFORE = [runs(90.0, {0: 10, 1: 11, 2: 12})]
HEALED = [
    event("plan_chosen", MADE + 0.05, reason="same seats", nodes=[]),
    runs(MADE + 0.2, {0: 10, 1: 21, 2: 12}),
    event("incident_closed", MADE + 0.3, incident=1, iteration=7, seconds=0.2),
]


class TestARankThatWasMadeToFail:
    def test_is_found_out_named_and_replaced(self) -> None:
        seen = outcome([*BEFORE, fault(MADE + 0.02, "n2", 1), *HEALED], len(BEFORE), MADE)
        assert seen.detected == pytest.approx(0.02)
        assert seen.recovered == pytest.approx(0.3)
        assert (seen.error, seen.iteration, seen.open_incident) == ("killed (SIGKILL)", 7, False)
        assert seen.action == "a new process in the same seat"
        assert named_rightly(seen, RANK)
        assert wronged(seen, RANK, node_is_bad=False) == []

    def test_is_not_named_by_words_about_nobody(self) -> None:
        seen = outcome([*BEFORE, fault(MADE + 5, "", None, "task hang"), *HEALED], len(BEFORE), MADE)
        assert seen.detected == pytest.approx(5)
        assert not named_rightly(seen, RANK)

    def test_is_named_by_the_verdict_whatever_was_said_before(self) -> None:
        verdict = event(
            "verdict", MADE + 1, incident=1, suspects=[1], nodes=["n2"], error="ECC error", severity="SEV1"
        )
        first = fault(MADE + 0.5, "n3", 2, "connection to a peer lost")
        seen = outcome([*BEFORE, first, verdict, *HEALED], len(BEFORE), MADE)
        assert seen.named == [("n2", 1)]
        assert seen.error == "ECC error"
        assert named_rightly(seen, RANK)

    def test_costs_no_node(self) -> None:
        lost = [event("agent_lost", MADE + 1, node="n2"), event("drain_requested", MADE + 1, node="n2")]
        seen = outcome([*BEFORE, fault(MADE + 0.02, "n2", 1), *lost, *HEALED], len(BEFORE), MADE)
        assert wronged(seen, RANK, node_is_bad=False) == [
            "n2 was taken out",
            "Slurm was asked to drain n2",
        ]
        assert wronged(seen, RANK, node_is_bad=True) == []


def test_a_verdict_speaks_of_the_ranks_of_its_own_task() -> None:
    other = {"task": "other", "node": "n9", "slot": 0, "rank": 1, "pid": 90, "replica": 0, "stage": 0}
    before = [*BEFORE, {**event("transition_finished", 91.0, ranks=[other], seconds=0.1), "task": "other"}]
    words = {"incident": 1, "suspects": [1], "nodes": ["n2"], "error": "rank hang", "severity": "SEV2"}
    seen = outcome([*before, event("verdict", MADE + 1, **words)], len(before), MADE)
    assert seen.named == [("n2", 1)]


class TestTheInnocent:
    def test_may_not_be_blamed(self) -> None:
        events = [*BEFORE, fault(MADE + 0.02, "n2", 1), fault(MADE + 0.1, "n3", 2), *HEALED]
        seen = outcome(events, len(BEFORE), MADE)
        assert not named_rightly(seen, RANK)
        assert wronged(seen, RANK, node_is_bad=False) == ["rank 2 on n3 was blamed"]

    def test_may_not_be_replaced(self) -> None:
        events = [*BEFORE, fault(MADE + 0.02, "n2", 1), runs(MADE + 0.2, {0: 30, 1: 21, 2: 12})]
        seen = outcome(events, len(BEFORE), MADE)
        assert seen.replaced == [("n1", 0), ("n2", 1)]
        assert wronged(seen, RANK, node_is_bad=False) == ["the process of rank 0 on n1 was replaced"]

    def test_may_not_be_called_slow(self) -> None:
        seen = outcome([*BEFORE, event("slow_node", MADE + 3, node="n1", factor=1.4)], len(BEFORE), MADE)
        assert wronged(seen, RANK, node_is_bad=True) == ["n1 was called slow"]

    def test_are_those_of_before_only_for_what_happened_since(self) -> None:
        old = [fault(50.0, "n3", 2), event("agent_lost", 51.0, node="n3"), *BEFORE]
        seen = outcome([*old, fault(MADE + 0.02, "n2", 1), *HEALED], len(old), MADE)
        assert (seen.lost, wronged(seen, RANK, node_is_bad=False)) == ([], [])


def test_a_node_that_was_lost_is_named_by_its_name_and_replaced_by_a_spare() -> None:
    events = [
        *BEFORE,
        fault(MADE + 2, "n2", None, "lost connection", severity="SEV1"),
        event("agent_lost", MADE + 2, node="n2"),
        event("plan_chosen", MADE + 2.1, reason="spare", nodes=[]),
        runs(MADE + 2.2, {0: 10, 1: 40, 2: 12}, {0: "n1", 1: "n4", 2: "n3"}),
    ]
    seen = outcome(events, len(BEFORE), MADE)
    assert named_rightly(seen, Culprit("n2"))
    assert seen.action == "a spare took its seats"
    assert seen.replaced == []  # whoever left a seat was replaced by nobody in it
    assert seen.open_incident


def test_the_right_one_beside_a_wrong_one_is_not_named_rightly() -> None:
    lost = [fault(MADE + 2, node, None, "lost connection") for node in ("n2", "n3")]
    assert not named_rightly(outcome([*BEFORE, *lost], len(BEFORE), MADE), Culprit("n2"))
    neighbours = [fault(MADE + 2, "n2", rank) for rank in (1, 5)]
    assert not named_rightly(outcome([*BEFORE, *neighbours], len(BEFORE), MADE), RANK)


def test_a_run_that_was_ended_says_how_and_with_whose_words() -> None:
    end = event(
        "job_finished", MADE + 0.1, state="failed", cause="out of memory in rank 1", detail="Traceback"
    )
    seen = outcome([*BEFORE, fault(MADE + 0.02, "n2", 1, "out of memory"), end], len(BEFORE), MADE)
    assert (seen.state, seen.cause) == ("failed", "out of memory in rank 1\nTraceback")
    assert seen.action == "the run was ended"
    assert seen.recovered is None


KINDS = (
    "fault_detected",
    "verdict",
    "slow_node",
    "agent_lost",
    "plan_chosen",
    "incident_closed",
    "job_finished",
)


@pytest.mark.parametrize("junk", [None, 5, "x", [], {}])
def test_events_of_another_version_or_damaged_ones_hide_nothing_of_the_others(junk: Any) -> None:
    keys = ("node", "rank", "factor", "iteration", "state", "suspects", "ranks", "reason")
    strange = [event(kind, MADE, **fields) for kind in KINDS for fields in ({}, dict.fromkeys(keys, junk))]
    strange += [event("transition_finished", MADE, ranks=junk), event("transition_finished", MADE)]
    events = [*strange, *BEFORE, *strange, fault(MADE + 0.02, "n2", 1), *HEALED]
    seen = outcome(events, len(strange) + len(BEFORE), MADE)
    assert ("n2", 1) in seen.named
    assert (seen.recovered, seen.iteration) == (pytest.approx(0.3), 7)

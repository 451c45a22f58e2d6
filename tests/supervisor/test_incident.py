"""Which piece of evidence is the cause of an incident."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.detect.field_cases import CASES
from tests.supervisor.examples import few
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.exits import explain_exit
from unicron_hpc.detect.severity import LOST_CONNECTION, TASK_HANG, Finding, Method, Severity
from unicron_hpc.supervisor.incident import Evidence, Incident

FINDINGS = st.builds(Finding, st.text(max_size=5), st.sampled_from(Severity), st.booleans())
EVIDENCE = st.builds(
    Evidence,
    FINDINGS,
    st.sampled_from(Method),
    st.sampled_from(["n1", "n2"]),
    st.one_of(st.none(), st.integers(0, 7)),
    st.text(max_size=5),
    st.floats(0, 100),
)


def seen(finding: Finding, rank: int | None, when: float, method: Method = Method.PROCESS) -> Evidence:
    return Evidence(finding, method, f"n{rank}", rank, "", when)


def from_field(entry: dict[str, Any]) -> Evidence:
    """Evidence as our own detection would put it."""
    method = Method.EXCEPTION
    if entry["event"] == "silent":
        finding, method = LOST_CONNECTION, Method.NODE_HEALTH
    elif entry["event"] == "nccl_timeout":
        finding = explain_exception("RuntimeError: NCCL communicator timed out")
    elif "exc" in entry:
        finding = explain_exception(entry["exc"])
    else:
        finding, method = (
            explain_exit(-entry["signal"] if "signal" in entry else entry["code"]),
            Method.PROCESS,
        )
    return seen(finding, entry["rank"], entry["t"], method)


@pytest.mark.parametrize("case_id", ["failure_sequence-01", "failure_sequence-03"])
def test_the_culprit_of_a_sequence_from_the_field_is_found_in_any_order_of_arrival(case_id: str) -> None:
    case = CASES[case_id]
    evidence = [from_field(entry) for entry in case["input"]]
    for order in (evidence, evidence[::-1]):
        cause = Incident(1, 0, list(order)).cause()
        assert cause is not None
        assert [cause.rank] == case["expected"]["suspect"]


def test_an_incident_without_evidence_has_no_cause() -> None:
    assert Incident(1, 0).cause() is None
    assert Incident(1, 0).program_fault() is None


def test_direct_evidence_goes_before_what_only_saw_a_peer_go_however_early_that_came() -> None:
    collateral = seen(explain_exception("RuntimeError: Connection closed by peer"), 0, 1.0)
    direct = seen(explain_exit(-9), 3, 9.0)
    assert Incident(1, 0, [collateral, direct]).cause() is direct
    assert Incident(1, 0, [collateral]).cause() is collateral


def test_a_lost_node_explains_the_ranks_that_died_with_it() -> None:
    exits = [seen(explain_exit(1), rank, float(rank)) for rank in range(3)]
    node = seen(LOST_CONNECTION, None, 5.0, Method.NODE_HEALTH)
    assert Incident(1, 0, [*exits, node]).cause() is node


def test_the_programs_own_fault_goes_before_everything_direct() -> None:
    node = seen(LOST_CONNECTION, None, 1.0, Method.NODE_HEALTH)
    program = seen(explain_exception("AssertionError: shapes"), 2, 2.0, Method.EXCEPTION)
    incident = Incident(1, 0, [node, program])
    assert incident.cause() is program
    assert incident.program_fault() is program


def test_of_the_same_fault_on_several_ranks_the_first_is_named() -> None:
    faults = [seen(explain_exception("ValueError: bad"), rank, 10.0 - rank) for rank in range(3)]
    incident = Incident(1, 0, faults)
    assert incident.cause() is faults[2]
    assert incident.program_fault() is faults[2]


def test_a_hang_is_the_cause_when_nothing_else_was_seen() -> None:
    hang = seen(TASK_HANG, None, 3.0, Method.STATISTICS)
    assert Incident(1, 0, [hang]).cause() is hang
    assert Incident(1, 0, [hang]).program_fault() is None


@few
@given(st.lists(EVIDENCE, min_size=1, max_size=6), st.data())
def test_the_cause_does_not_depend_on_the_order_of_arrival(
    evidence: list[Evidence], data: st.DataObject
) -> None:
    cause = Incident(1, 0, evidence).cause()
    other = Incident(1, 0, data.draw(st.permutations(evidence))).cause()
    assert cause is not None
    assert other is not None
    assert (cause.finding.severity, cause.finding.collateral, cause.time) == (
        other.finding.severity,
        other.finding.collateral,
        other.time,
    )
    assert not cause.finding.collateral or all(e.finding.collateral for e in evidence)

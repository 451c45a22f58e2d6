"""Sequences as they are met in the field, each with the verdict that a person would reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detect.test_attribution import REPORTS, SQUARE
from unicron_hpc.detect.attribution import judge
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.exits import explain_exit
from unicron_hpc.detect.reports import Report, Sign, Structure, Verdict
from unicron_hpc.detect.sequence import read_report, read_structure, verdict_as_data

#: Eight ranks, two on a node; the two of a node are a pipeline, stage by stage they share data groups.
LAYOUT = {
    "nodes": {str(rank): f"n{rank // 2}" for rank in range(8)},
    "groups": [[0, 2, 4, 6], [1, 3, 5, 7], [0, 1], [2, 3], [4, 5], [6, 7]],
}
CASES = [
    json.loads(line) for line in (Path(__file__).parent / "sequences.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_sequence_has_the_verdict_of_a_person(case: dict[str, Any]) -> None:
    structure = read_structure(case.get("layout", LAYOUT if case["laid_out"] else {}))
    told = verdict_as_data(judge([read_report(entry) for entry in case["input"]], structure))
    assert {key: told[key] for key in case["expected"]} == case["expected"]
    assert not set(told["suspect"]) & {*told["victims"], *told["collateral"]}


AT_DIFFERENT_TIMES = st.lists(REPORTS, max_size=7, unique_by=lambda report: report.time)
enough = settings(max_examples=150, deadline=None)


def relabeled(report: Report, ranks: list[int]) -> Report:
    return msgspec.structs.replace(report, rank=None if report.rank is None else ranks[report.rank])


@enough
@given(AT_DIFFERENT_TIMES, st.permutations(range(6)), st.booleans())
def test_other_numbers_for_the_ranks_change_nothing_else(
    reports: list[Report], ranks: list[int], laid_out: bool
) -> None:
    layout = SQUARE if laid_out else Structure()
    groups = tuple(tuple(ranks[rank] for rank in group) for group in layout.groups)
    renamed = Structure(groups, {ranks[rank]: node for rank, node in layout.nodes.items()})
    before = judge(reports, layout)
    after = judge([relabeled(report, ranks) for report in reports], renamed)

    def core(verdict: Verdict, names: list[int]) -> tuple[object, ...]:
        people = (verdict.suspects, verdict.victims, verdict.collateral)
        return (
            *(sorted(names[rank] for rank in some) for some in people),
            verdict.finding,
            verdict.action,
            verdict.drain,
            sorted(verdict.suspect_nodes),
        )

    assert core(before, ranks) == core(after, list(range(6)))


@enough
@given(st.lists(REPORTS, min_size=1, max_size=7), st.data())
def test_what_is_told_twice_changes_nothing(reports: list[Report], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(reports))
    assert judge([*reports, again], SQUARE) == judge(reports, SQUARE)


CONSEQUENCES = [
    (Sign.FAULT, explain_exception("RuntimeError: Connection closed by peer"), False),
    (Sign.FAULT, explain_exception("RuntimeError: NCCL communicator timed out"), False),
    (Sign.FAULT, explain_exit(1), True),
    (Sign.ENDED, explain_exit(-15), True),
]


@enough
@given(
    st.lists(REPORTS, min_size=1, max_size=6),
    st.sampled_from(CONSEQUENCES),
    st.integers(0, 5),
    st.floats(0.01, 700),
)
def test_a_later_consequence_never_moves_the_blame_off_a_cause_that_was_named(
    reports: list[Report], consequence: tuple[Sign, Any, bool], rank: int, after: float
) -> None:
    before = judge(reports, SQUARE)
    cause = before.cause
    named = (
        cause is not None and not cause.vague and cause.finding is not None and not cause.finding.collateral
    )
    if cause is None or not named or not before.suspects:
        return
    sign, finding, vague = consequence
    late = Report(max(report.time for report in reports) + after, sign, rank, "", finding, vague)
    told = judge([*reports, late], SQUARE)
    assert (told.suspects, told.finding, told.suspect_nodes) == (
        before.suspects,
        before.finding,
        before.suspect_nodes,
    )
    assert set(told.collateral) == {*before.collateral, rank} - {*before.suspects}

"""Who is guilty when many complain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detect.field_cases import CASES
from unicron_hpc.detect.attribution import judge
from unicron_hpc.detect.exceptions import UNKNOWN_EXCEPTION, explain_exception
from unicron_hpc.detect.exits import HOST_MEMORY, explain_exit
from unicron_hpc.detect.reports import Action, Report, Sign, Structure, Verdict
from unicron_hpc.detect.sequence import read_report, verdict_as_data
from unicron_hpc.detect.severity import (
    LOST_CONNECTION,
    NOT_ANSWERING,
    SLOW,
    WANTED_END,
    Blame,
    Finding,
    Severity,
)

SEQUENCES = [case for case in CASES.values() if case["kind"] == "failure_sequence"]
ECC = explain_exception("RuntimeError: CUDA error: uncorrectable ECC error encountered")
PEER_GONE = explain_exception("RuntimeError: Connection closed by peer")
TIMEOUT = explain_exception("RuntimeError: NCCL communicator timed out")
ASSERTION = explain_exception("AssertionError: shapes")
KILLED, ABORTED = explain_exit(-9), explain_exit(-6)
FELL_OFF = explain_exception("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus")
LAUNCH_FAILURE = explain_exception("RuntimeError: CUDA error: unspecified launch failure")

#: Two pipelines of two stages on two nodes: ranks 0, 1 and 2, 3; stage by stage they share data groups.
SQUARE = Structure(
    groups=((0, 1), (2, 3), (0, 2), (1, 3)), nodes={0: "n1", 1: "n1", 2: "n2", 3: "n2"}
)  # fmt: skip


def fault(rank: int, time: float, finding: Finding, **more: Any) -> Report:
    return Report(time, Sign.FAULT, rank, finding=finding, **more)


def death(rank: int, time: float, finding: Finding = KILLED, **more: Any) -> Report:
    return Report(time, Sign.DEATH, rank, finding=finding, **more)


def silent(rank: int, time: float) -> Report:
    return Report(time, Sign.SILENT, rank)


FINDINGS = [ECC, PEER_GONE, TIMEOUT, ASSERTION, KILLED, LAUNCH_FAILURE, FELL_OFF, LOST_CONNECTION, SLOW]
FINDINGS += [HOST_MEMORY, WANTED_END, NOT_ANSWERING, *map(explain_exit, (0, 1, -15))]
REPORTS = st.builds(
    Report,
    st.integers(0, 80).map(lambda tenths: tenths / 10),
    st.sampled_from(Sign),
    st.none() | st.integers(0, 5),
    st.sampled_from(["", "n1", "n2"]),
    st.none() | st.sampled_from(FINDINGS),
    st.booleans(),
    st.none() | st.floats(0, 9),
    st.none() | st.integers(1, 3),
)
several = settings(max_examples=100, deadline=None)


@pytest.mark.parametrize("case", SEQUENCES, ids=lambda case: case["id"])
def test_a_sequence_from_the_field_has_the_verdict_of_the_field_in_any_order(case: dict[str, Any]) -> None:
    reports = [read_report(entry) for entry in case["input"]]
    told = verdict_as_data(judge(reports))
    assert told == verdict_as_data(judge(reports[::-1]))
    expected = {key: value for key, value in case["expected"].items() if key != "note"}
    assert expected
    assert {key: told[key] for key in expected} == expected


@several
@given(st.lists(REPORTS, max_size=7), st.data())
def test_the_verdict_does_not_depend_on_the_order_of_arrival(
    reports: list[Report], data: st.DataObject
) -> None:
    assert judge(reports, SQUARE) == judge(data.draw(st.permutations(reports)), SQUARE)


@several
@given(st.lists(REPORTS, max_size=7))
def test_nobody_is_both_suspect_and_collateral_and_every_verdict_says_why(reports: list[Report]) -> None:
    verdict = judge(reports)
    assert not set(verdict.suspects) & set(verdict.collateral)
    assert set(verdict.victims) <= set(verdict.collateral)
    if verdict.suspects or verdict.drain:
        assert verdict.finding is not None
        assert verdict.evidence
    if verdict.drain:
        assert (verdict.action, verdict.finding and verdict.finding.blame) == (Action.NODE_OUT, Blame.NODE)


@several
@given(st.lists(st.builds(fault, st.integers(0, 5), st.floats(0, 9), st.sampled_from([PEER_GONE, TIMEOUT]))))
def test_complaints_alone_drain_nobody_and_stop_no_run(complaints: list[Report]) -> None:
    verdict = judge(complaints, SQUARE)
    assert verdict.action in {Action.NOTHING, Action.RETRY, Action.NEW_PROCESS}
    assert not verdict.drain


def test_without_reports_nothing_is_to_be_done() -> None:
    assert judge([]) == Verdict()


def test_the_report_that_comes_late_corrects_the_verdict() -> None:
    early = [fault(0, 10.2, PEER_GONE, arrival=10.3), fault(1, 10.3, PEER_GONE, arrival=10.4)]
    assert judge(early).suspects == ()
    late = judge([*early, fault(7, 9.9, ECC, arrival=12.0, node="n4")])
    assert (late.suspects, late.suspect_node, late.action) == ((7,), "n4", Action.NODE_OUT)
    assert late.victims == (0, 1)
    assert "heard 2.1 s later" in late.evidence[0]


def test_a_cause_goes_before_a_complaint_however_early_that_came() -> None:
    verdict = judge([fault(0, 1.0, PEER_GONE), death(3, 4.0)])
    assert (verdict.suspects, verdict.victims) == ((3,), (0,))


def test_of_several_causes_the_earliest_is_named() -> None:
    verdict = judge([fault(2, 5.0, ASSERTION), fault(1, 4.0, ASSERTION), fault(0, 6.0, ASSERTION)])
    assert (verdict.suspects, verdict.collateral, verdict.action) == ((1,), (0, 2), Action.STOP)


def test_what_says_only_that_it_failed_goes_behind_what_says_why() -> None:
    verdict = judge([fault(0, 1.0, explain_exit(1), vague=True), fault(3, 2.0, LAUNCH_FAILURE)])
    assert verdict.suspects == (3,)


def test_two_ranks_killed_at_once_are_both_suspects() -> None:
    assert judge([death(1, 1.0), death(2, 1.1), fault(0, 1.2, PEER_GONE)]).suspects == (1, 2)


def test_a_rank_that_complained_before_it_was_killed_is_no_suspect() -> None:
    reports = [fault(0, 1.0, PEER_GONE), death(0, 1.1, ABORTED), death(3, 1.05)]
    verdict = judge(reports)
    assert (verdict.suspects, verdict.collateral) == ((3,), (0,))
    assert judge(reports[:2]).suspects == ()


def test_a_rank_that_lost_a_peer_and_then_raises_something_else_is_a_suspect() -> None:
    raised = fault(0, 9.0, UNKNOWN_EXCEPTION, vague=True)
    assert judge([fault(0, 1.0, PEER_GONE), fault(1, 1.0, PEER_GONE), raised]).suspects == (0,)
    assert judge([fault(0, 1.0, PEER_GONE), fault(0, 9.0, explain_exit(1), vague=True)]).suspects == ()


def test_a_kill_long_after_the_others_complained_is_the_launchers() -> None:
    reports = [silent(5, 0.0), fault(1, 600.0, TIMEOUT), death(0, 606.0)]
    assert judge(reports).suspects == (5,)
    assert judge(reports).collateral == (0, 1)


def test_a_bad_node_has_all_its_own_errors_named_beside_the_first() -> None:
    verdict = judge([fault(7, 1.0, ECC, node="n4"), fault(2, 3.0, ECC, node="n2")])
    assert verdict.suspects == (2, 7)


def test_the_nodes_error_stands_behind_the_process_that_failed_on_it() -> None:
    record = Report(1.3, Sign.FAULT, node="n2", finding=FELL_OFF)
    verdict = judge([fault(3, 1.0, LAUNCH_FAILURE), record, fault(0, 1.1, PEER_GONE)], SQUARE)
    assert (verdict.suspects, verdict.suspect_node, verdict.action) == ((3,), "n2", Action.NODE_OUT)
    other_node = judge([fault(0, 1.0, LAUNCH_FAILURE), record], SQUARE)
    assert 0 in other_node.suspects


@pytest.mark.parametrize(
    ("apart", "drained"), [((0.0, 0.5), True), ((0.0, 0.5, 1.9), False), ((0.0, 9.0, 20.0), True)]
)
def test_nodes_that_are_lost_together_are_not_drained(apart: tuple[float, ...], drained: bool) -> None:
    lost = [Report(t, Sign.FAULT, node=f"n{k}", finding=LOST_CONNECTION) for k, t in enumerate(apart)]
    verdict = judge(lost)
    assert (verdict.action, verdict.drain) == (Action.NODE_OUT, drained)
    assert ("by the network" in verdict.evidence[0]) is not drained


@pytest.mark.parametrize(("died", "suspects"), [(1.0, (1,)), (3.0, ())])
def test_a_death_without_a_reason_after_an_end_that_was_wanted_is_nobodys(
    died: float, suspects: tuple[int, ...]
) -> None:
    wanted = Report(2.0, Sign.ENDED, 0, finding=WANTED_END)
    assert judge([wanted, death(1, died)]).suspects == suspects
    assert judge([wanted, death(1, died), fault(2, 3.0, ASSERTION)]).suspects[-1:] == (suspects or (2,))


def test_a_lost_node_accuses_the_ranks_on_it() -> None:
    lost = Report(3.0, Sign.FAULT, node="n2", finding=LOST_CONNECTION)
    verdict = judge([fault(0, 1.0, PEER_GONE), lost, fault(1, 1.0, PEER_GONE)], SQUARE)
    assert (verdict.suspects, verdict.victims, verdict.suspect_node) == ((2, 3), (0, 1), "n2")
    assert verdict.drain


@pytest.mark.parametrize("sign", [Sign.SILENT, Sign.FAULT])
def test_a_lost_node_and_a_rank_killed_elsewhere_are_both_suspects(sign: Sign) -> None:
    lost = Report(1.0, sign, node="n2", finding=LOST_CONNECTION)
    for died in (0.9, 1.1):
        assert judge([lost, death(0, died), fault(1, 1.2, PEER_GONE)], SQUARE).suspects == (0, 2, 3)


def test_the_rank_that_lags_in_the_collectives_is_the_suspect_of_those_that_wait() -> None:
    reports = [fault(k, 600.0 + k, TIMEOUT, sequence=40, group="dp") for k in range(3)]
    lagging = fault(3, 601.0, TIMEOUT, sequence=39, group="dp")
    verdict = judge([*reports, lagging])
    assert (verdict.suspects, verdict.victims, verdict.action) == ((3,), (0, 1, 2), Action.NEW_PROCESS)
    assert judge(reports).suspects == ()


def test_most_cannot_lag_behind_one() -> None:
    behind = [fault(k, 600.0, TIMEOUT, sequence=39) for k in range(3)]
    assert judge([*behind, fault(3, 600.0, TIMEOUT, sequence=40)]).suspects == ()


def test_who_says_nothing_while_its_groups_complain_is_the_suspect() -> None:
    reports = [fault(0, 600.0, TIMEOUT), fault(3, 600.0, TIMEOUT), fault(1, 601.0, TIMEOUT)]
    verdict = judge(reports, SQUARE)
    assert verdict.suspects == (2,)
    assert "said nothing" in verdict.evidence[0]
    assert judge(reports).suspects == ()


def test_when_more_are_silent_than_complain_nobody_is_accused() -> None:
    ring = Structure(groups=((0, 1, 2, 3),))
    assert judge([fault(0, 600.0, TIMEOUT)], ring).suspects == ()


@pytest.mark.parametrize("over", [None, 50.0, 150.0])
def test_a_rank_that_said_that_it_would_be_busy_may_be_silent_until_it_is_done(over: float | None) -> None:
    reports = [Report(0.0, Sign.SECTION, 4, detail="checkpointing"), silent(4, 120.0)]
    if over is not None:
        reports.append(Report(over, Sign.SECTION_OVER, 4))
    assert judge(reports).suspects == ((4,) if over == 50.0 else ())


def test_one_ranks_section_excuses_no_other() -> None:
    assert judge([Report(0.0, Sign.SECTION, 4), silent(5, 120.0)]).suspects == (5,)


@pytest.mark.parametrize(
    ("node", "after", "found"),
    [("n1", 0.1, True), ("n1", -0.1, True), ("n2", 0.1, False), ("n1", 99.0, False)],
)
def test_a_kill_for_want_of_memory_explains_a_death_on_its_node_near_it(
    node: str, after: float, found: bool
) -> None:
    kill = Report(5.0 + after, Sign.MEMORY_KILL, node=node, finding=HOST_MEMORY)
    verdict = judge([death(1, 5.0), kill, fault(2, 5.1, PEER_GONE)], SQUARE)
    assert verdict.suspects == (1,)
    assert (verdict.finding == HOST_MEMORY) is found
    assert verdict.action is (Action.STOP if found else Action.NEW_PROCESS)
    assert not verdict.drain


def test_restarts_of_several_ranks_on_one_node_accuse_the_node() -> None:
    def restarts(*places: tuple[int, str]) -> list[Report]:
        return [Report(float(k), Sign.RESTART, rank, node) for k, (rank, node) in enumerate(places)]

    assert judge(restarts((9, "n3"), (11, "n3"))).suspect_node == "n3"
    assert judge(restarts((9, "n3"), (9, "n3"))).suspect_node == ""
    assert judge(restarts((9, "n3"), (9, "n3"), (9, "n3"))).suspect_node == "n3"
    assert judge(restarts((9, "n3"), (11, "n3"), (1, "n1"), (2, "n1"))).suspect_node == ""


def test_a_warning_is_no_fault() -> None:
    warning = explain_exception("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13")
    assert warning.severity is Severity.INFO
    verdict = judge([fault(1, 0.0, warning)])
    assert (verdict.action, verdict.suspects, verdict.finding) == (Action.NOTHING, (), None)


def test_another_collective_of_the_same_number_accuses_the_few_of_a_group_that_is_known() -> None:
    def ran(*operations: str, group: str = "dp") -> list[Report]:
        return [
            fault(rank, 600.0, TIMEOUT, sequence=40, group=group, operation=operation)
            for rank, operation in enumerate(operations)
        ]

    verdict = judge(ran("ALLREDUCE(8)", "ALLREDUCE(8)", "BROADCAST(8)"))
    assert (verdict.suspects, verdict.victims, verdict.action) == ((2,), (0, 1), Action.STOP)
    assert judge(ran("ALLREDUCE(8)", "ALLREDUCE(8)", "BROADCAST(8)", "BROADCAST(8)")).suspects == ()
    assert judge(ran("ALLREDUCE(8)", "ALLREDUCE(8)", "BROADCAST(8)", group="")).suspects == ()


def test_of_two_who_name_each_other_the_first_to_say_so_is_told() -> None:
    words = "Rank {} is running collective: a, but Rank {} is running collective: b"
    finding = explain_exception("RuntimeError: Detected mismatch between collectives on ranks.")
    mutual = [
        fault(0, 1.0, finding, detail=words.format(0, 1)),
        fault(1, 1.1, finding, detail=words.format(1, 0)),
    ]
    assert judge(mutual).suspects == (0,)
    assert judge([*mutual, fault(2, 1.2, finding, detail=words.format(2, 1))]).suspects == (1,)


@pytest.mark.parametrize(("heard", "suspects"), [(5.0, ()), (700.0, (3,))])
def test_a_sign_of_life_excuses_a_silence_if_nobody_had_missed_the_rank(
    heard: float, suspects: tuple[int, ...]
) -> None:
    reports = [silent(3, 0.0), Report(heard, Sign.ALIVE, 3), fault(1, 600.0, TIMEOUT)]
    assert judge(reports).suspects == suspects


@pytest.mark.parametrize(("apart", "suspects"), [(0.2, ()), (1.0, (0,))])
def test_all_ranks_that_fall_silent_one_right_after_the_other_hang_together(
    apart: float, suspects: tuple[int, ...]
) -> None:
    assert judge([silent(rank, rank * apart) for rank in range(4)], SQUARE).suspects == suspects


def test_a_file_server_that_several_nodes_lost_accuses_no_rank() -> None:
    lost = Finding("network file system lost", Severity.SEV2, Blame.NETWORK)
    one, other = fault(0, 1.0, lost, node="n1"), fault(2, 1.5, lost, node="n2")
    assert judge([one, fault(2, 2.0, PEER_GONE)]).suspects == (0,)
    verdict = judge([one, other])
    assert (verdict.suspects, verdict.finding) == ((), lost)
    assert judge([fault(0, 1.0, ASSERTION, node="n1"), fault(2, 1.5, ASSERTION, node="n2")]).suspects == (0,)

"""What is done about a fault: the rules, one by one, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.handling import (
    LIMITS,
    RULES,
    Action,
    Case,
    Decision,
    Spent,
    decide,
    exhausted,
    rules_table,
)
from unicron_hpc.detect.severity import LOST_CONNECTION, Blame, Finding, Severity

BUDGETS = RecoverySettings()
KILLED = Finding("killed (SIGKILL)", Severity.SEV2)
ASSERTED = Finding("device-side assertion", Severity.SEV2, Blame.PROGRAM)
HANG = Finding("task hang", Severity.SEV3, Blame.NETWORK)
BROKEN = Finding("connection to a peer lost", Severity.SEV3, collateral=True)
NOT_A_NUMBER = Finding("loss is not finite", Severity.PROGRAM, Blame.PROGRAM)
ECC = Finding("ECC error", Severity.SEV1, Blame.NODE)

FINDINGS = st.builds(Finding, st.just("x"), st.sampled_from(Severity), st.sampled_from(Blame), st.booleans())
CASES = st.builds(
    Case, FINDINGS, repeats=st.integers(0, 9), restarts=st.integers(0, 9), faults_on_node=st.integers(0, 9),
    elsewhere=st.booleans(), lost_together=st.integers(1, 9),
)  # fmt: skip
#: How much is replaced, in ascending order.
WEIGHT = {
    Action.NOTE: 0, Action.RETRY: 1, Action.RESTART: 2, Action.NODE_ON_TRIAL: 3, Action.NODE_AWAY: 3,
    Action.NODE_OUT: 3, Action.STOP: 4,
}  # fmt: skip


def by(case: Case) -> tuple[Action, str]:
    decision = decide(case, BUDGETS)
    return decision.action, decision.rule


@pytest.mark.parametrize(
    ("case", "action", "rule"),
    [
        (Case(HANG), Action.RETRY, "again in place"),
        (Case(KILLED, restarts=1, faults_on_node=1), Action.RESTART, "new process"),
        (Case(ECC, restarts=1), Action.NODE_OUT, "bad node"),
        (Case(LOST_CONNECTION), Action.NODE_OUT, "bad node"),
        (Case(NOT_A_NUMBER, restarts=9, faults_on_node=9), Action.STOP, "fault of the program"),
        (Case(BROKEN, repeats=9), Action.RETRY, "saw a peer go"),
        (Case(Finding("requeued", Severity.INFO, Blame.NOBODY)), Action.NOTE, "nothing failed"),
    ],
)
def test_each_severity_has_its_action(case: Case, action: Action, rule: str) -> None:
    assert by(case) == (action, rule)


class TestAFailedActionRaisesTheLevel:
    def test_from_trying_again_to_a_new_process(self) -> None:
        assert by(Case(HANG, repeats=BUDGETS.max_retries - 1))[0] is Action.RETRY
        assert by(Case(HANG, repeats=BUDGETS.max_retries)) == (
            Action.RESTART, "again in place does not help",
        )  # fmt: skip

    def test_from_a_new_process_to_the_node(self) -> None:
        assert by(Case(KILLED, restarts=BUDGETS.max_restarts_per_rank))[0] is Action.RESTART
        assert by(Case(KILLED, restarts=BUDGETS.max_restarts_per_rank + 1)) == (
            Action.NODE_ON_TRIAL, "new processes do not help",
        )  # fmt: skip

    def test_from_a_new_process_to_the_program_if_that_is_to_blame(self) -> None:
        assert by(Case(ASSERTED, restarts=1))[0] is Action.RESTART
        assert by(Case(ASSERTED, restarts=1, repeats=5))[0] is Action.RESTART  # told more than once
        assert by(Case(ASSERTED, restarts=2))[0] is Action.RESTART  # something else had failed before
        assert by(Case(ASSERTED, restarts=2, repeats=1)) == (Action.STOP, "the program again")
        assert by(Case(KILLED, restarts=2, repeats=1))[0] is Action.RESTART

    def test_and_from_the_node_to_the_program_when_it_comes_again_elsewhere(self) -> None:
        assert by(Case(KILLED, restarts=1, elsewhere=True)) == (Action.STOP, "follows the program")


class TestANodeOnWhichProcessesFailAgainAndAgain:
    def test_is_out_however_well_each_was_mended(self) -> None:
        assert by(Case(KILLED, restarts=1, faults_on_node=BUDGETS.max_faults_per_node))[0] is Action.RESTART
        assert by(Case(KILLED, restarts=1, faults_on_node=BUDGETS.max_faults_per_node + 1)) == (
            Action.NODE_ON_TRIAL, "again and again on this node",
        )  # fmt: skip

    @pytest.mark.parametrize("blame", [Blame.NETWORK, Blame.PROGRAM, Blame.NOBODY])
    def test_is_not_blamed_for_what_is_not_its_processes_doing(self, blame: Blame) -> None:
        finding = Finding("x", Severity.SEV2, blame)
        assert by(Case(finding, restarts=1, faults_on_node=99))[0] is Action.RESTART


class TestALostNode:
    def test_is_not_drained_when_others_are_lost_at_the_same_time(self) -> None:
        few, many = BUDGETS.lost_together - 1, BUDGETS.lost_together
        assert by(Case(LOST_CONNECTION, lost_together=few))[0] is Action.NODE_OUT
        assert by(Case(LOST_CONNECTION, lost_together=many)) == (Action.NODE_AWAY, "lost together")

    @pytest.mark.parametrize("blame", [Blame.NETWORK, Blame.NOBODY])
    def test_is_not_drained_when_it_is_not_its_doing(self, blame: Blame) -> None:
        finding = replace_blame(LOST_CONNECTION, blame)
        assert by(Case(finding)) == (Action.NODE_AWAY, "not the node's doing")


def replace_blame(finding: Finding, blame: Blame) -> Finding:
    return Finding(finding.error, finding.severity, blame)


@given(CASES)
def test_every_case_has_a_rule_and_says_why(case: Case) -> None:
    decision = decide(case, BUDGETS)
    assert isinstance(decision, Decision)
    assert decision.reason
    assert decision.rule in {rule.name for rule in RULES}


@given(CASES, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_the_level_never_falls_while_faults_go_on(
    case: Case, repeats: int, restarts: int, faults: int
) -> None:
    later = replace(
        case,
        repeats=case.repeats + repeats,
        restarts=case.restarts + restarts,
        faults_on_node=case.faults_on_node + faults,
    )
    assert WEIGHT[decide(later, BUDGETS).action] >= WEIGHT[decide(case, BUDGETS).action]


@given(CASES)
def test_whoever_only_saw_a_peer_go_is_neither_replaced_nor_drained(case: Case) -> None:
    finding = Finding("x", Severity.SEV3, case.finding.blame, collateral=True)
    assert decide(replace(case, finding=finding), BUDGETS).action is Action.RETRY


@given(CASES)
def test_a_fault_of_the_program_costs_no_node_and_nothing_but_a_fault_of_a_node_has_it_drained(
    case: Case,
) -> None:
    action = decide(case, BUDGETS).action
    if case.finding.severity is Severity.PROGRAM:
        assert action is Action.STOP
    if action is Action.NODE_OUT:
        assert case.finding.severity is Severity.SEV1
        assert case.finding.blame not in (Blame.NETWORK, Blame.NOBODY)


@given(CASES)
def test_a_fault_that_never_ends_comes_to_the_node_or_ends_the_run(case: Case) -> None:
    """However it is mended: the same again and again, each time with the budgets used up a little more."""
    if case.finding.collateral or case.finding.severity is Severity.INFO:
        return
    spent = 50
    worst = replace(case, repeats=case.repeats + spent, restarts=case.restarts + spent)
    assert WEIGHT[decide(worst, BUDGETS).action] >= WEIGHT[Action.NODE_OUT]


class TestBudgets:
    @given(st.integers(0, 99), st.integers(0, 20))
    def test_an_incident_that_commits_nothing_is_given_up(self, retries: int, places: int) -> None:
        budgets = RecoverySettings(max_retries=retries)
        most = 2 * (retries + 1) + places
        assert exhausted(Spent(transitions=most, places=places), budgets) is None
        limit = exhausted(Spent(transitions=most + 1, places=places), budgets)
        assert limit is not None
        assert limit.name == "no progress"

    def test_a_run_with_too_many_incidents_is_given_up(self) -> None:
        assert exhausted(Spent(incidents=BUDGETS.max_incidents), BUDGETS) is None
        limit = exhausted(Spent(incidents=BUDGETS.max_incidents + 1), BUDGETS)
        assert limit is not None
        assert limit.name == "too many incidents"


class TestTheTable:
    def test_has_each_rule_and_each_limit_once(self) -> None:
        names = [row.name for row in (*RULES, *LIMITS)]
        assert len(set(names)) == len(names)
        for name in names:
            assert rules_table().count(f"\n| {name} |") == 1

    def test_is_in_the_documentation_as_it_is_here(self) -> None:
        page = Path(__file__).parents[2] / "docs" / "failure-modes.md"
        assert rules_table() in page.read_text("utf-8")

"""Asking for a drain: the words that Slurm gets, and what is made of its answer."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slurm.field_cases import case
from unicron_hpc.errors import ConfigError, SlurmError
from unicron_hpc.slurm.commands import Completed
from unicron_hpc.slurm.drain import DrainResult, drain
from unicron_hpc.slurm.drain_reasons import LONGEST, check_template, fill

TEMPLATE = "unicron: {kind} job {job} {time}"
WORDS = "unicron: Xid 79 job 12 2026-11-30T12:00:00"


class Scontrol:
    """A node with state and reason; answers to updates as recorded, and keeps what it was asked."""

    def __init__(
        self, *answers: Completed | SlurmError, node_state: str = "ALLOCATED", reason: str = ""
    ) -> None:
        self.answers = list(answers)
        self.node_state = node_state
        self.reason = f"{reason} [root@2026-11-30T10:00:00]" if reason else ""
        self.asked: list[list[str]] = []

    def drained_by_somebody(self, reason: str) -> None:
        self.node_state, self.reason = "ALLOCATED+DRAIN", f"{reason} [root@2026-11-30T11:00:00]"

    def __call__(self, argv: Sequence[str]) -> Completed:
        if argv[1] == "show":
            reason = f" Reason={self.reason}" if self.reason else ""
            return Completed(
                tuple(argv), f"NodeName={argv[-1]} State={self.node_state} X=1 {reason}\n", "", 0
            )
        self.asked.append(list(argv))
        answer = self.answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        if answer.code == 0:
            self.node_state = "ALLOCATED+DRAIN"
            self.reason = argv[-1].removeprefix("Reason=") + " [alice@2026-11-30T12:00:00]"
        return answer


OK = Completed(("scontrol",), "", "", 0)
BUSY = Completed(
    ("scontrol",),
    "",
    "slurm_update error: Job update not available right now, the DB index is being set, try again in a bit\n",
    1,
)
NODES = ("c1", "c2")


def ask(scontrol: Scontrol, node: str = "c1", waits: Callable[[float], None] = lambda s: None) -> DrainResult:
    return drain(node, WORDS, NODES, job_id="12", run=scontrol, wait=waits)


def test_a_node_is_drained_with_the_reason() -> None:
    scontrol = Scontrol(OK)
    result = ask(scontrol)
    assert (result.drained, result.message) == (True, "c1 is draining")
    assert scontrol.asked == [["scontrol", "update", "NodeName=c1", "State=DRAIN", f"Reason={WORDS}"]]


def test_a_refusal_says_who_must_act() -> None:
    given_, expected = case("drain-01")
    refusal = Completed(("scontrol",), "", given_["stderr"], given_["rc"])
    result = ask(Scontrol(refusal))
    assert result.drained is expected["drained"]
    assert result.refused
    assert "Invalid user id" in result.message
    assert "administrator" in result.message
    assert f'scontrol update NodeName=c1 State=DRAIN Reason="{WORDS}"' in result.message


def test_a_node_outside_the_allocation_is_refused_and_slurm_not_asked() -> None:
    scontrol = Scontrol()
    result = ask(scontrol, case("drain-07")[0]["node"])
    assert not result.drained
    assert "not in job 12's allocation" in result.message
    assert scontrol.asked == []


def test_a_busy_slurmctld_is_asked_again() -> None:
    waits: list[float] = []
    assert ask(Scontrol(BUSY, BUSY, OK), waits=waits.append).drained
    assert len(waits) == 2
    assert waits[0] < waits[1]


def test_patience_with_a_busy_slurmctld_ends() -> None:
    result = ask(Scontrol(*[BUSY] * 50))
    assert not result.drained
    assert "try again" in result.message


class TestAnAdministratorsReason:
    def test_is_left_alone_on_a_node_that_drains_already(self) -> None:
        scontrol = Scontrol(node_state="MIXED+DRAIN", reason="bad fan")
        assert ask(scontrol).drained
        assert scontrol.asked == []

    def test_is_left_alone_on_a_node_that_is_down_by_their_word(self) -> None:
        scontrol = Scontrol(node_state="DOWN", reason="power supply")
        result = ask(scontrol)
        assert result.drained
        assert "its reason is left" in result.message
        assert scontrol.asked == []

    def test_is_not_what_slurmctld_wrote_itself(self) -> None:
        scontrol = Scontrol(OK, node_state="DOWN", reason="Not responding")
        ask(scontrol)
        assert scontrol.asked[0][-1] == f"Reason={WORDS}"

    def test_is_kept_before_ours_on_a_node_in_service(self) -> None:
        scontrol = Scontrol(OK, reason="watch this one")
        ask(scontrol)
        assert scontrol.asked[0][-1] == f"Reason=watch this one; {WORDS}"

    def test_that_comes_while_we_wait_is_seen_before_the_next_try(self) -> None:
        scontrol = Scontrol(BUSY, OK)
        result = ask(scontrol, waits=lambda s: scontrol.drained_by_somebody("bad fan"))
        assert result.drained
        assert len(scontrol.asked) == 1

    def test_that_comes_after_ours_is_named(self) -> None:
        scontrol = Scontrol(OK)

        def then_somebody(argv: Sequence[str]) -> Completed:
            done = scontrol(argv)
            if argv[1] == "update":
                scontrol.drained_by_somebody("bad fan")
            return done

        result = drain("c1", WORDS, NODES, job_id="12", run=then_somebody)
        assert (result.drained, result.message) == (True, "c1 is draining; the reason kept with it is root's")

    def test_may_be_that_the_node_stays_in_service(self) -> None:
        scontrol = Scontrol(OK)

        def resumed(argv: Sequence[str]) -> Completed:
            done = scontrol(argv)
            if argv[1] == "update":
                scontrol.node_state, scontrol.reason = "IDLE", ""
            return done

        result = drain("c1", WORDS, NODES, job_id="12", run=resumed)
        assert not result.drained
        assert "somebody resumed it" in result.message


@pytest.mark.parametrize("answer", [SlurmError("no answer within 30 s"), Completed((), "", "odd", 3)])
def test_whatever_slurm_does_training_is_not_disturbed(answer: Completed | SlurmError) -> None:
    result = ask(Scontrol(answer))
    assert not result.drained
    assert not result.refused


@pytest.mark.parametrize("earlier", ["", "slow fan", 'fan "B"', "costs $5", "`rm`", "it's old", "a\\b"])
def test_what_an_administrator_is_asked_to_run_is_one_command_whatever_was_written_before(
    earlier: str,
) -> None:
    refusal = Completed((), "", "slurm_update error: Invalid user id\n", 1)
    result = drain("c1", WORDS, NODES, job_id="12", run=Scontrol(refusal, reason=earlier))
    words = shlex.split(result.message.partition("ask one to run: ")[2])
    reason = f"{earlier}; {WORDS}" if earlier else WORDS
    assert words == ["scontrol", "update", "NodeName=c1", "State=DRAIN", f"Reason={reason}"]
    in_a_shell = subprocess.run(
        ["sh", "-c", f"printf %s {result.message.partition('State=DRAIN ')[2]}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert in_a_shell.stdout == f"Reason={reason}"


class TestTheReason:
    def test_is_the_template_filled_in(self) -> None:
        values = {"kind": "Xid 79", "job": "12", "time": "2026-11-30T12:00:00"}
        assert fill(TEMPLATE, values) == WORDS
        assert fill("{node}/{rank}", {"node": "c1", "rank": "3"}) == "c1/3"

    def test_is_never_missing(self) -> None:
        assert case("drain-03")[0]["cmd"].find("Reason") == -1
        assert fill(TEMPLATE, {"kind": " \n "}) == "unicron: - job - -"
        assert fill("", {}) == "unicron: cause not known"

    def test_has_job_and_time_however_long_a_sites_rule_calls_the_error(self) -> None:
        values = {"kind": "fan tray " * 40, "job": "12", "time": "2026-11-30T12:00:00"}
        assert fill(TEMPLATE, values).startswith("unicron: fan tray fan tray")
        assert fill(TEMPLATE, values).endswith(" job 12 2026-11-30T12:00:00")

    def test_has_no_quotes_nor_line_breaks_of_the_error(self) -> None:
        assert fill("{kind}", {"kind": case("drain-05")[0]["reason"]}) == "Xid 79 fallen off bus"

    @given(st.text(), st.text())
    def test_is_one_printable_line_that_no_shell_acts_on(self, kind: str, rank: str) -> None:
        reason = fill("u: {kind} {rank}", {"kind": kind, "rank": rank})
        assert reason.isascii()
        assert reason.isprintable()
        assert reason.strip() == reason
        assert not set(reason) & set("\"'`\\|;$<>&=")
        assert 0 < len(reason) <= LONGEST

    @pytest.mark.parametrize("template", ["{king}", "{kind!r}", "{kind:>9}", "{0}", "{", "{kind.x}", "''"])
    def test_has_a_template_that_can_be_filled_in(self, template: str) -> None:
        with pytest.raises(ConfigError):
            check_template(template)

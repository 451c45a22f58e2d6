"""Asking for a drain: the words that Slurm gets, and what is made of its answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.slurm.field_cases import case
from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm.commands import Completed
from unicron_hpc.slurm.drain import drain, drain_reason


class Scontrol:
    """Answers as recorded, and keeps what it was asked."""

    def __init__(self, *answers: Completed | SlurmError, node_state: str = "ALLOCATED") -> None:
        self.answers = list(answers)
        self.node_state = node_state
        self.asked: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> Completed:
        if argv[1] == "show":
            return Completed(tuple(argv), f"NodeName={argv[-1]} State={self.node_state} X=1\n", "", 0)
        self.asked.append(list(argv))
        answer = self.answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer


OK = Completed(("scontrol",), "", "", 0)
BUSY = Completed(
    ("scontrol",),
    "",
    "slurm_update error: Job update not available right now, the DB index is being set, try again in a bit\n",
    1,
)
NODES = ("c1", "c2")


def test_a_node_is_drained_with_product_job_and_cause() -> None:
    scontrol = Scontrol(OK)
    result = drain("c1", "Xid 79 on rank 3", NODES, job_id="12", run=scontrol)
    assert result.drained
    assert scontrol.asked == [
        ["scontrol", "update", "NodeName=c1", "State=DRAIN", "Reason=unicron_hpc job 12: Xid 79 on rank 3"]
    ]


def test_a_refusal_says_who_must_act() -> None:
    given, expected = case("drain-01")
    refusal = Completed(("scontrol",), "", given["stderr"], given["rc"])
    result = drain("c1", "xid79", NODES, job_id="12", run=Scontrol(refusal))
    assert result.drained is expected["drained"]
    assert result.refused
    assert "Invalid user id" in result.message
    assert "administrator" in result.message
    assert 'scontrol update NodeName=c1 State=DRAIN Reason="unicron_hpc job 12: xid79"' in result.message


def test_a_reason_is_never_missing() -> None:
    assert case("drain-03")[0]["cmd"].find("Reason") == -1
    assert drain_reason("12", " \n ") == "unicron_hpc job 12: cause not known"


def test_a_reason_is_one_printable_line_without_quotes() -> None:
    reason = drain_reason("12", case("drain-05")[0]["reason"])
    assert reason == "unicron_hpc job 12: Xid 79 fallen off bus"
    assert len(drain_reason("12", "x" * 5000)) <= 200
    assert drain_reason("1", "é$(reboot)`x`").isascii()


def test_a_node_outside_the_allocation_is_refused_and_slurm_not_asked() -> None:
    scontrol = Scontrol()
    result = drain(case("drain-07")[0]["node"], "x", NODES, job_id="12", run=scontrol)
    assert not result.drained
    assert "not in job 12's allocation" in result.message
    assert scontrol.asked == []


def test_a_busy_slurmctld_is_asked_again() -> None:
    waits: list[float] = []
    result = drain("c1", "x", NODES, job_id="1", run=Scontrol(BUSY, BUSY, OK), wait=waits.append)
    assert result.drained
    assert len(waits) == 2
    assert waits[0] < waits[1]


def test_patience_with_a_busy_slurmctld_ends() -> None:
    result = drain("c1", "x", NODES, job_id="1", run=Scontrol(*[BUSY] * 50), wait=lambda s: None)
    assert not result.drained
    assert "try again" in result.message


def test_an_earlier_reason_is_left_alone() -> None:
    scontrol = Scontrol(node_state="MIXED+DRAIN")
    result = drain("c2", "x", NODES, job_id="1", run=scontrol)
    assert result.drained
    assert scontrol.asked == []


@pytest.mark.parametrize("answer", [SlurmError("no answer within 30 s"), Completed((), "", "odd", 3)])
def test_whatever_slurm_does_training_is_not_disturbed(answer: Completed | SlurmError) -> None:
    result = drain("c1", "x", NODES, job_id="1", run=Scontrol(answer))
    assert not result.drained
    assert not result.refused

"""Bad nodes that a job has got all the same are its last spares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from tests.slurm.settings_for_tests import settings
from unicron_hpc.config import Settings
from unicron_hpc.report.journal import EVENTS, read_events
from unicron_hpc.report.sentences import sentence
from unicron_hpc.slurm import avoiding
from unicron_hpc.slurm.bad_nodes import BadNode
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.last_resort import bad_nodes_last, leave_out_after_requeue

NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> list[BadNode]:
    """What is known to be bad."""
    known: list[BadNode] = []

    def known_bad(_: Settings, among: Collection[str], env: Mapping[str, str] | None = None) -> list[BadNode]:
        return [entry for entry in known if entry.node in among]

    monkeypatch.setattr(avoiding, "known_bad", known_bad)
    return known


def told(folder: Path) -> list[str]:
    return [sentence(event) for event in read_events(folder / EVENTS)]


def test_a_bad_node_is_the_last_spare_and_the_journal_says_why(tmp_path: Path, bad: list[BadNode]) -> None:
    bad += [BadNode("n1", 1.0, "lost connection", "7"), BadNode("n9", 1.0, "elsewhere", "7")]
    found = bad_nodes_last(Allocation("12", NODES, 3, 1, batch_node="n1"), settings(), tmp_path)
    assert found == Allocation("12", ("n2", "n3", "n4", "n1"), 3, 1, batch_node="n1")
    assert told(tmp_path) == [
        "found bad before, and used only when no other node is left: n1 (lost connection, job 7)"
    ]


def test_a_bad_node_trains_where_nobody_else_can(tmp_path: Path, bad: list[BadNode]) -> None:
    bad += [BadNode("n2", 2.0, "ECC error", "7"), BadNode("n1", 1.0, "lost connection", "7")]
    found = bad_nodes_last(Allocation("12", NODES, 3, 1), settings(), tmp_path)
    assert found.nodes == ("n3", "n4", "n1", "n2")
    (words,) = told(tmp_path)
    assert words.endswith("n1 (lost connection, job 7); n1 must train from the start")


def test_without_a_bad_node_nothing_is_changed_nor_said(tmp_path: Path, bad: list[BadNode]) -> None:
    allocation = Allocation("12", NODES, 3, 1)
    assert bad_nodes_last(allocation, settings(), tmp_path) is allocation
    assert not (tmp_path / EVENTS).exists()


def test_what_slurm_took_for_the_next_attempt_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(avoiding, "after_requeue", lambda settings, job: (f"n1 is left out of {job}",))
    leave_out_after_requeue(Allocation("12", NODES, 3, 1), settings(), tmp_path)
    assert capsys.readouterr().out == "unicron: next attempt: n1 is left out of 12\n"
    assert told(tmp_path) == ["Slurm has put the job back into its queue; n1 is left out of 12"]

"""`unicron drill`: whom it chooses, what it refuses, how it judges; the faults themselves need a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.config.settings_text import VALID
from unicron_hpc.cli.drill import _follow, command
from unicron_hpc.cli.drill_target import Target, choose
from unicron_hpc.cli.drill_watch import Watched, failures
from unicron_hpc.errors import ConfigError
from unicron_hpc.report.drill_outcome import Culprit, Outcome
from unicron_hpc.supervisor.drill_kinds import KINDS, Expected

RANKS = [
    {
        "node": f"n{n + 1}",
        "slot": 0,
        "rank": n,
        "pid": 10 + n,
        "task": "train",
        "replica": n // 3,
        "stage": n % 3,
        "layers": [1, 2],
    }
    for n in range(6)
]


def drill(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def chosen(name: str, *, node: str | None = None, rank: int | None = None, boss: str = "n1") -> Target:
    nodes = [f"n{n}" for n in (*range(1, 7), 9)]
    return choose(name, KINDS[name], RANKS, boss, nodes, node=node, rank=rank, task=None)


class TestTheTarget:
    def test_is_what_was_asked_for(self) -> None:
        assert chosen("kill", rank=2) == Target("n3", "train", 0, 12, 2)
        assert chosen("kill", node="n1") == Target("n1", "train", 0, 10, 0)
        assert chosen("node-kill", node="n2") == Target("n2")

    def test_does_not_coordinate_if_another_can_be_had(self) -> None:
        assert chosen("kill", boss="n6").node == "n5"
        assert chosen("stop-agent", boss="n6") == Target("n5")

    def test_of_a_broken_data_loader_reads_data(self) -> None:
        assert chosen("exception-data", boss="n6").rank == 3  # rank 4 is a middle stage
        with pytest.raises(ConfigError, match="reads data"):
            chosen("exception-data", rank=1)

    def test_may_be_a_spare_for_what_befalls_nodes_only(self) -> None:
        assert chosen("node-kill", node="n9") == Target("n9")
        with pytest.raises(ConfigError, match="no such rank"):
            chosen("kill", node="n9")

    def test_is_no_node_that_the_job_does_not_have(self) -> None:
        with pytest.raises(ConfigError, match="no node n8"):
            chosen("node-cut", node="n8")


class TestTheCommand:
    def test_lists_every_drill_with_what_must_come_of_it(self) -> None:
        told = json.loads(drill("list", "--json").stdout)
        assert {row["name"] for row in told} == set(KINDS)
        assert all(row["sentence"].endswith(".") and row["expected"] for row in told)
        assert all(name in drill("list").stdout for name in KINDS)

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["node-cut", "4711"], "needs --with"),
            (["node-cut", "--with", "false", "--undo", "true", "4711"], "--undo needs --seconds"),
            (["kill", "--error", "ValueError: x", "4711"], "--error means nothing"),
            (["nan", "--leave", "5", "4711"], "--leave means nothing"),
            (["kill", "/nowhere/run-1"], "no run folder"),
        ],
    )
    def test_refuses_what_makes_no_sense_and_does_nothing(self, words: list[str], complaint: str) -> None:
        done = drill("run", "--yes", *words)
        assert done.exit_code == 2
        assert complaint in done.stderr

    @pytest.fixture
    def run_folder(self, tmp_path: Path) -> Callable[[str], str]:
        """Makes a run folder with a rank in it, and returns its path."""

        def make(recovery: str = "") -> str:
            (tmp_path / "train.yaml").write_text(VALID + recovery)
            (tmp_path / "corpus.txt").write_text("text")
            started = {"job_id": "1", "nodes": ["n1"], "active": 1, "train_iters": {"train": 9}}
            events = [
                {"type": "job_started", "time": 1.0, "epoch": 0, **started},
                {"type": "transition_finished", "time": 2.0, "epoch": 1, "task": "train", "ranks": RANKS[:1]},
            ]
            (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
            return f"{tmp_path}/"

        return make

    def test_asks_before_anything_is_done(self, run_folder: Callable[[str], str]) -> None:
        done = drill("run", "kill", run_folder(""))
        assert done.exit_code == 2
        assert "Give --yes" in done.stderr

    def test_does_nothing_to_a_job_that_forbids_drills(self, run_folder: Callable[[str], str]) -> None:
        done = drill("run", "kill", "--yes", run_folder("recovery: {drills: false}\n"))
        assert done.exit_code == 2
        assert "recovery.drills is false" in done.stderr


class TestTheJudgement:
    MADE = time.time() - 100

    def judged(self, tmp_path: Path, expected: Expected, rank: int | None = 1, **seen: Any) -> list[str]:
        (tmp_path / "metrics.jsonl").write_text(
            "".join(json.dumps({"time": self.MADE + n, "iteration": n}) + "\n" for n in range(60))
        )
        watched = Watched(tmp_path, "0" * 12, Culprit("n2", rank), expected, 0, 10.0, 1.0, 0.0)
        return failures(watched, Outcome(self.MADE, **seen))

    def test_wants_the_culprit_named_and_training_to_go_on(self, tmp_path: Path) -> None:
        good = {"named": [("n2", 1)], "recovered": 0.3}
        assert self.judged(tmp_path, Expected.RANK_NAMED, **good) == []
        assert self.judged(tmp_path, Expected.RANK_NAMED, **(good | {"named": []})) == [
            "rank 1 on n2 was not named"
        ]
        assert self.judged(tmp_path, Expected.RANK_NAMED, **(good | {"recovered": None}))
        assert self.judged(tmp_path, Expected.RANK_NAMED, **good, state="failed", cause="x") == [
            "the run ended as failed: x"
        ]

    def test_wants_a_fault_of_the_program_to_end_the_run_and_cost_no_node(self, tmp_path: Path) -> None:
        good = {"named": [("n2", 1)], "state": "failed", "error": "out of memory"}
        assert self.judged(tmp_path, Expected.JOB_FAILS, **good) == []
        assert self.judged(tmp_path, Expected.JOB_FAILS, **(good | {"state": ""})) == [
            "the run has not failed"
        ]
        assert self.judged(tmp_path, Expected.JOB_FAILS, **good, drained=["n2"])
        assert self.judged(tmp_path, Expected.JOB_FAILS_SAYING_WHY, **(good | {"named": [("n3", 2)]})) == []
        assert self.judged(tmp_path, Expected.JOB_FAILS_SAYING_WHY, **good, lost=["n3"])
        assert self.judged(tmp_path, Expected.JOB_FAILS_SAYING_WHY, **(good | {"error": ""}))

    def test_wants_a_slow_node_called_slow(self, tmp_path: Path) -> None:
        assert self.judged(tmp_path, Expected.SLOW_NAMED, warned={"n2": 2.0, "n3": 1.2}) == []
        assert self.judged(tmp_path, Expected.SLOW_NAMED) == ["n2 was not called slow"]
        assert self.judged(tmp_path, Expected.SLOW_NAMED, warned={"n2": 1.2, "n3": 2.0}) == [
            "n3 was called slow"
        ]

    def test_wants_nobody_blamed_for_what_is_nobodys_fault(self, tmp_path: Path) -> None:
        assert self.judged(tmp_path, Expected.NOBODY_NAMED, None) == []
        assert self.judged(tmp_path, Expected.NOBODY_NAMED, None, named=[("n2", None)])
        assert self.judged(tmp_path, Expected.NODE_OR_NOBODY, None, named=[("n2", None)], lost=["n2"]) == []
        assert self.judged(tmp_path, Expected.NODE_OR_NOBODY, None, named=[("n3", None)])


def test_a_network_is_given_back_though_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        if seconds > 1.0:  # what starts the command looks for its end in short steps
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    watched = Watched(tmp_path, "0" * 12, Culprit("n2"), Expected.NODE_NAMED, 0, 20.0, 60.0, 3.0)
    with pytest.raises(KeyboardInterrupt):
        _follow(watched, time.time(), f"touch {tmp_path}/{{node}}")
    assert (tmp_path / "n2").exists()

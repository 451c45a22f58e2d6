"""How a run stands whose journal has no end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from unicron_hpc.cli import standing as room
from unicron_hpc.cli.main import main
from unicron_hpc.cli.standing import Standing, after_end, standing
from unicron_hpc.cli.status import ask_others
from unicron_hpc.errors import SlurmError
from unicron_hpc.report.journal import EVENTS
from unicron_hpc.report.status import read_status
from unicron_hpc.slurm import queries
from unicron_hpc.slurm.parsing import JobRecord
from unicron_hpc.slurm.states import parse_job_state
from unicron_hpc.supervisor.allocation import Allocation, write_allocation
from unicron_hpc.supervisor.directory import announce

STARTED = {
    "time": 10.0,
    "type": "job_started",
    "epoch": 0,
    "job_id": "4711",
    "shown_id": "4711",
    "ends": None,
    "nodes": ["n1", "n2"],
    "active": 2,
    "train_iters": {"a": 9},
}


def end(state: str) -> dict[str, Any]:
    return {"time": 11.0, "type": "job_finished", "epoch": 1, "state": state, "cause": "", "exit_code": 1}


class Slurm:
    """What slurmctld would say."""

    def __init__(self) -> None:
        self.told: JobRecord | SlurmError = SlurmError("not asked for")
        self.asked: list[str] = []

    def has(self, state: str, reason: str = "") -> None:
        self.told = JobRecord("4711", parse_job_state(state), reason=reason)

    def job(self, job_id: str, *, timeout: float) -> JobRecord:
        self.asked.append(job_id)
        if isinstance(self.told, SlurmError):
            raise self.told
        return self.told


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(queries, "job", slurm.job)
    monkeypatch.setattr(room.shutil, "which", lambda command: f"/usr/bin/{command}")
    return slurm


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Of a job on Slurm that has begun."""
    folder = tmp_path / "gpt-tiny-4711"
    folder.mkdir()
    (folder / "train.yaml").touch()
    write_allocation(folder, Allocation("4711", ("n1", "n2"), 2, 1, batch_node="n1"))
    journal(folder, STARTED)
    return folder


@pytest.fixture
def local_folder(tmp_path: Path) -> Path:
    """Of a run without Slurm."""
    folder = tmp_path / "gpt-tiny-local-1-2"
    folder.mkdir()
    (folder / "train.yaml").touch()
    write_allocation(folder, Allocation("local-1-2", ("n1",), 1, 1))
    journal(folder, {**STARTED, "job_id": "local-1-2"})
    return folder


@pytest.fixture
def agent(local_folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like an agent of that run."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", code, str(local_folder)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # its command line can be read only a moment after its start
    yield process
    process.kill()
    process.communicate()


def journal(folder: Path, *events: dict[str, Any]) -> None:
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def register(folder: Path, pid: int, **more: Any) -> None:
    """An agent's own file, as `announce` writes it."""
    announce(folder, "n1", "tcp://127.0.0.1:1")
    path = folder / "agents" / "n1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": pid, **more}))


def summary(folder: Path, state: str, code: int) -> None:
    (folder / "summary.json").write_text(json.dumps({"state": state, "exit_code": code, "cause": "why"}))


def shown(folder: Path) -> dict[str, Any]:
    told = CliRunner().invoke(main, ["status", "--json", str(folder)])
    assert told.exit_code == 0, told.output
    return dict(json.loads(told.output))


class TestAJobOnSlurm:
    def test_that_runs_needs_no_words(self, run_folder: Path, slurm: Slurm) -> None:
        slurm.has("RUNNING")
        assert standing(run_folder) == Standing("RUNNING")

    @pytest.mark.parametrize("state", ["CANCELLED", "NODE_FAIL", "TIMEOUT", "PREEMPTED", "COMPLETED"])
    def test_that_slurm_has_ended_is_over(self, run_folder: Path, slurm: Slurm, state: str) -> None:
        slurm.has(state)
        found = standing(run_folder)
        assert (found.state, found.over) == (state, True)
        assert f"Slurm has job 4711 as {state}: The job" in found.words

    @pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", "REQUEUED", "a state of tomorrow"])
    def test_in_any_other_state_is_not(self, run_folder: Path, slurm: Slurm, state: str) -> None:
        slurm.has(state)
        found = standing(run_folder)
        assert not found.over
        assert "4711" in found.words

    def test_that_slurm_has_forgotten_is_over_and_nobody_knows_how(
        self, run_folder: Path, slurm: Slurm
    ) -> None:
        slurm.told = JobRecord("4711", queries.FORGOTTEN)
        found = standing(run_folder)
        assert (found.state, found.over) == ("UNKNOWN", True)
        assert "does not know job 4711" in found.words

    def test_is_not_judged_while_slurm_is_silent(self, run_folder: Path, slurm: Slurm) -> None:
        slurm.told = SlurmError("no answer within 10 s")
        found = standing(run_folder)
        assert (found.state, found.over) == ("", False)
        assert "no answer within 10 s" in found.words

    def test_is_not_judged_where_slurm_has_no_commands(
        self, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(room.shutil, "which", lambda command: None)
        assert not standing(run_folder).over
        assert "not in PATH" in standing(run_folder).words

    def test_that_has_not_begun_waits(self, run_folder: Path, slurm: Slurm) -> None:
        (run_folder / "allocation.json").unlink()
        slurm.has("PENDING", "Resources")
        assert "PENDING (Resources)" in standing(run_folder).words

    def test_is_over_when_its_summary_says_so(self, run_folder: Path, slurm: Slurm) -> None:
        summary(run_folder, "finished", 0)
        assert standing(run_folder) == Standing("COMPLETED", True, "the job has finished: why")
        assert slurm.asked == []

    def test_that_failed_and_was_put_back_is_not(self, run_folder: Path, slurm: Slurm) -> None:
        summary(run_folder, "failed", 1)
        slurm.has("PENDING", "BeginTime")
        assert standing(run_folder).state == "PENDING"
        slurm.has("FAILED")
        assert standing(run_folder) == Standing("FAILED", True, "the job has failed: why")

    def test_whose_journal_has_ended_is_over_when_slurm_says_so(self, run_folder: Path, slurm: Slurm) -> None:
        summary(run_folder, "failed", 1)
        for state in ("COMPLETING", "PENDING", "FAILED"):
            slurm.has(state)
            found = after_end(run_folder)
            assert (found.state, found.over, found.again) == (state, state == "FAILED", state == "PENDING")
        (run_folder / "allocation.json").unlink()
        assert after_end(run_folder) == Standing("")


class TestARunOnThisMachine:
    def test_that_has_not_begun_is_nothing_that_slurm_knows(self, local_folder: Path, slurm: Slurm) -> None:
        """The number at the end of its name is a process's."""
        for name in ("allocation.json", EVENTS):
            (local_folder / name).unlink()
        assert standing(local_folder) == Standing("")
        assert ask_others(read_status(local_folder))["job_id"] == "local-1-2"
        assert slurm.asked == []

    def test_is_over_when_its_journal_has_ended(self, local_folder: Path) -> None:
        assert after_end(local_folder).over

    def test_runs_while_one_of_its_agents_lives(
        self, local_folder: Path, agent: subprocess.Popen[bytes]
    ) -> None:
        register(local_folder, agent.pid)
        assert standing(local_folder) == Standing("RUNNING")

    def test_is_over_once_none_does(self, local_folder: Path, agent: subprocess.Popen[bytes]) -> None:
        register(local_folder, agent.pid)
        agent.kill()
        agent.wait()
        assert standing(local_folder).over

    def test_is_over_although_another_process_has_got_the_number(self, local_folder: Path) -> None:
        register(local_folder, os.getppid())
        assert standing(local_folder).over

    def test_is_not_judged_from_another_machine(self, local_folder: Path) -> None:
        register(local_folder, 1, host="login7")
        found = standing(local_folder)
        assert not found.over
        assert "login7" in found.words

    @pytest.mark.parametrize("damage", ["", "[]", '{"pid": "x"}', "{"])
    def test_takes_a_damaged_file_for_none(self, local_folder: Path, damage: str) -> None:
        register(local_folder, 1)
        (local_folder / "agents" / "n1.json").write_text(damage)
        assert standing(local_folder).over


class TestStatus:
    def test_does_not_claim_that_a_killed_job_runs(self, run_folder: Path, slurm: Slurm) -> None:
        slurm.has("CANCELLED")
        status = shown(run_folder)
        assert status["state"] == "CANCELLED"
        assert "cancelled by its user" in status["cause"]

    def test_does_not_claim_that_a_forgotten_job_runs(self, run_folder: Path, slurm: Slurm) -> None:
        slurm.told = JobRecord("4711", queries.FORGOTTEN)
        assert shown(run_folder)["state"] == "UNKNOWN"

    def test_says_when_only_the_journal_is_known(self, run_folder: Path, slurm: Slurm) -> None:
        slurm.told = SlurmError("no answer within 10 s")
        status = shown(run_folder)
        assert status["note"].endswith("is not known; this is what its journal said last")
        assert status["cause"] == ""
        told = CliRunner().invoke(main, ["status", str(run_folder)], env={"COLUMNS": "200"})
        assert status["note"] in told.output

    def test_tells_that_a_cancelled_job_was_put_back(self, run_folder: Path, slurm: Slurm) -> None:
        journal(run_folder, STARTED, end("cancelled"))
        slurm.has("PENDING", "BeginTime")
        assert shown(run_folder)["state"] == "PENDING"
        slurm.has("CANCELLED")
        assert shown(run_folder)["state"] == "CANCELLED"

    def test_keeps_the_journals_word_on_an_end(self, run_folder: Path, slurm: Slurm) -> None:
        journal(run_folder, STARTED, end("finished"))
        assert shown(run_folder)["state"] == "COMPLETED"
        assert slurm.asked == []

    def test_does_not_claim_that_a_dead_local_run_runs(self, local_folder: Path) -> None:
        status = shown(local_folder)
        assert (status["state"], status["job_id"]) == ("FAILED", "local-1-2")
        assert "none of its processes is left" in status["cause"]

"""The batch process: runs the agents until the run is over, however it ends. Real commands for srun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.field_cases import case
from tests.slurm.settings_for_tests import settings
from tests.supervisor.events import until
from tests.supervisor.zygotes import ROOT, ended
from unicron_hpc.errors import UnicronError
from unicron_hpc.slurm.signals import parse_signal, stopping
from unicron_hpc.supervisor import batch
from unicron_hpc.supervisor.outcome import Outcome, read_outcome

#: Writes the summary that a coordinator writes, then does what the test says.
STEP = """
import json, os, sys, time, signal
from pathlib import Path
folder = Path(sys.argv[1])
def end(state, code):
    text = json.dumps({"state": state, "exit_code": code, "cause": "told so"})
    (folder / "half").write_text(text)
    os.replace(folder / "half", folder / "summary.json")
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The batch process sets handlers; this one gets its own back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def command(folder: Path, then: str) -> list[str]:
    return [sys.executable, "-c", STEP + then, str(folder)]


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("failed", 1), ("cancelled", 1)])
def test_the_outcome_is_what_the_coordinator_wrote_not_how_srun_ended(
    tmp_path: Path, state: str, code: int
) -> None:
    outcome = batch.run_step(command(tmp_path, f"end({state!r}, {code}); sys.exit(9)"), tmp_path, os.environ)
    assert outcome == Outcome(state, code, "told so")


@pytest.mark.parametrize("then", ["sys.exit(0)", "sys.exit(7)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_agents_that_end_without_an_outcome_are_a_failed_run_with_a_summary(
    tmp_path: Path, then: str
) -> None:
    outcome = batch.run_step(command(tmp_path, then), tmp_path, os.environ)
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert "before the run was over" in outcome.cause
    assert str(tmp_path) in outcome.cause
    assert read_outcome(tmp_path) == outcome


def test_an_srun_that_hangs_on_a_lost_node_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "LEAVE_GRACE", 0.1)
    monkeypatch.setattr(batch, "LOOK_INTERVAL", 0.05)
    hanging = "(folder / 'pid').write_text(str(os.getpid())); end('finished', 0)\nwhile True: signal.pause()"
    outcome = batch.run_step(command(tmp_path, hanging), tmp_path, os.environ)
    assert outcome == Outcome("finished", 0, "told so")
    pid = int((tmp_path / "pid").read_text())
    assert ended(pid)


def test_the_summary_of_an_attempt_before_a_requeue_does_not_end_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requeued job has the same number and so the same run folder."""
    monkeypatch.setattr(batch, "LEAVE_GRACE", 0.0)
    monkeypatch.setattr(batch, "LOOK_INTERVAL", 0.02)
    (tmp_path / "summary.json").write_text(
        json.dumps({"state": "cancelled", "exit_code": 1, "cause": "requeued"})
    )
    outcome = batch.run_step(command(tmp_path, "time.sleep(0.3); end('finished', 0)"), tmp_path, os.environ)
    assert outcome == Outcome("finished", 0, "told so")


BATCH = """
import sys
from pathlib import Path
from unicron_hpc.supervisor import batch
from unicron_hpc.supervisor.batch import run_step
batch.HURRIED_GRACE, batch.LOOK_INTERVAL = 0.1, 0.05
print(run_step(sys.argv[2:], Path(sys.argv[1]), {}).state, flush=True)
"""


def test_a_signal_is_passed_on_and_the_run_ends_as_its_coordinator_says(tmp_path: Path) -> None:
    then = (
        "signal.signal(signal.SIGUSR1, lambda *_: (end('cancelled', 1), sys.exit(1)))\n"
        "(folder / 'up').touch()\nwhile True: signal.pause()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", BATCH, str(tmp_path), *command(tmp_path, then)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    until(lambda: (tmp_path / "up").exists())
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.read() == "cancelled\n"
    assert process.wait() == 0
    process.stdout.close()


def test_a_second_signal_ends_a_run_that_does_not_answer_the_first(tmp_path: Path) -> None:
    """signal-05 of the field's cases: the second one shortens the grace, and nothing but words come of it."""
    then = (
        "signal.signal(signal.SIGUSR1, lambda *_: (folder / 'asked').touch())\n"
        "(folder / 'up').touch()\nwhile True: signal.pause()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", BATCH, str(tmp_path), *command(tmp_path, then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    until(lambda: (tmp_path / "up").exists())
    process.send_signal(signal.SIGTERM)
    until(lambda: (tmp_path / "asked").exists())
    process.send_signal(signal.SIGTERM)
    assert process.communicate() == ("cancelled\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize("word", ["USR1@90", "USR2@120", "B:HUP@60"])
def test_the_signal_that_the_user_has_slurm_send_is_an_orderly_end(tmp_path: Path, word: str) -> None:
    then = (
        "signal.signal(signal.SIGUSR1, lambda *_: (end('cancelled', 1), sys.exit(1)))\n"
        "(folder / 'up').touch()\nwhile True: signal.pause()"
    )
    chosen = stopping(settings(f"slurm.signal={word}").slurm.signal)
    program = BATCH.replace("{})", f"{{}}, {sorted(map(int, chosen))})")
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), *command(tmp_path, then)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    until(lambda: (tmp_path / "up").exists())
    process.send_signal(parse_signal(word).signal)
    assert process.communicate()[0] == "cancelled\n"
    assert process.returncode == 0


def test_the_step_survives_lost_nodes_and_names_every_node() -> None:
    argv = batch.srun_command(["n1", "n2", "n3"], Path("/runs/tiny-7"))
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0"} <= set(argv)
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--nodelist=n1,n2,n3"} <= set(argv)
    assert argv[-3:] == ["-m", "unicron_hpc.supervisor.agent", "/runs/tiny-7"]


def test_a_step_on_the_survivors_names_them_and_inherits_no_size_of_the_whole_job() -> None:
    given, expected = case("env-13")
    argv = batch.srun_command(given["alive"], Path("/runs/tiny-7"))
    assert set(expected["srun_must_contain"]) <= set(argv)
    left = batch.step_environment(dict.fromkeys(expected["scrub"], "4") | {"SLURM_JOB_ID": "1"})
    assert left == {"SLURM_JOB_ID": "1"}


def test_sizes_that_go_stale_when_a_node_is_lost_do_not_reach_srun() -> None:
    stale = {"SLURM_NNODES": "3", "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "1(x3)"}
    kept = {"SLURM_JOB_ID": "7", "PATH": "/bin"}
    assert batch.step_environment({**stale, **kept}) == kept


def test_what_slurm_granted_is_read_from_its_variables() -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3,5,6]", "SLURMD_NODENAME": "n1"}
    granted = batch.allocation_of(variables, settings("slurm.ranks_per_node=2"))
    assert granted.nodes == ("n1", "n2", "n3", "n5", "n6")
    assert (granted.job_id, granted.active, granted.slots, granted.batch_node) == ("7", 4, 2, "n1")
    fewer = batch.allocation_of({**variables, "SLURM_JOB_NODELIST": "n[1-3]"}, settings())
    assert fewer.active == 3


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"])
def test_outside_a_job_the_missing_variable_is_named(missing: str) -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    del variables[missing]
    with pytest.raises(UnicronError, match=missing):
        batch.allocation_of(variables, settings())

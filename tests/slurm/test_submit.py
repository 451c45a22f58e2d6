"""Submission: what is refused before Slurm is asked, and what is made of its answers.

The answers here are recorded; tests/cluster/test_slurm_room.py has the real ones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.field_cases import case
from tests.slurm.settings_for_tests import settings
from unicron_hpc.config import load_resolved
from unicron_hpc.errors import ConfigError, SlurmError
from unicron_hpc.slurm.commands import Completed
from unicron_hpc.slurm.submit import Request, SubmissionRefused, check_size, submit


class Sbatch:
    """Gives recorded answers and keeps how it was called."""

    def __init__(self, *answers: tuple[str, str, int]) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[list[str], dict[str, str]]] = []

    def __call__(self, argv: Sequence[str], *, env: dict[str, str]) -> Completed:
        self.calls.append((list(argv), env))
        return Completed(tuple(argv), *self.answers.pop(0))


@pytest.fixture
def request_(tmp_path: Path, path: str) -> Request:
    return Request(settings(run_dir=tmp_path / "runs"), "train.yaml", "name: tiny\n", ("--new-option=1",))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A PATH on which sbatch can be found, and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text("#!/bin/false\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return str(folder)


def _submit(request: Request, sbatch: Sbatch, env: dict[str, str] | None = None) -> Any:
    waits: list[float] = []
    done = submit(request, {"PATH": os.environ["PATH"], **(env or {})}, run=sbatch, wait=waits.append)
    return done, waits


def test_the_run_folder_holds_what_was_submitted(request_: Request, tmp_path: Path) -> None:
    sbatch = Sbatch(("77\n", "", 0))
    job, _ = _submit(request_, sbatch)
    assert (job.job_id, job.run_folder) == ("77", tmp_path / "runs" / "tiny-77")
    assert job.output == tmp_path / "runs" / "tiny-77.out"
    assert load_resolved(job.run_folder) == request_.settings
    assert (job.run_folder / "train.source.yaml").read_text() == "name: tiny\n"
    ((argv, _),) = sbatch.calls
    assert argv[:3] == ["sbatch", "--parsable", "--new-option=1"]
    staged = Path(argv[3]).parent
    assert f"unicron_hpc.supervisor.batch {staged}\n" in (job.run_folder / "submission.sh").read_text()


def test_sbatch_sees_no_trace_of_another_job_and_the_user_is_told(request_: Request) -> None:
    sbatch = Sbatch(("77\n", "sbatch: no partition specified, using default partition main\n", 0))
    job, _ = _submit(request_, sbatch, {"SBATCH_PARTITION": "debug", "SLURM_JOB_ID": "9", "HOME": "/h"})
    assert set(sbatch.calls[0][1]) == {"HOME", "PATH"}
    assert job.warnings[0].startswith("SBATCH_PARTITION=debug")
    assert job.warnings[1].endswith("using default partition main")


def test_a_refusal_shows_slurms_words_and_the_script(request_: Request) -> None:
    words = case("sbatch_output-09")[0]
    with pytest.raises(SubmissionRefused) as caught:
        _submit(request_, Sbatch(("", words, 1)))
    assert caught.value.exit_code == 2
    assert "Invalid account or account/partition combination specified" in str(caught.value)
    script = str(caught.value).rpartition("the script is ")[2]
    assert Path(script).read_text().startswith("#!/bin/bash\n")


def test_an_unreachable_slurmctld_is_tried_again_with_growing_pauses(request_: Request) -> None:
    silent = ("", case("sbatch_output-11")[0], 1)
    job, waits = _submit(request_, Sbatch(silent, silent, ("5\n", "", 0)))
    assert job.job_id == "5"
    assert waits == sorted(waits)
    assert len(waits) == 2


def test_an_unreachable_slurmctld_is_an_error_in_the_end_but_no_refusal(request_: Request) -> None:
    silent = ("", case("sbatch_output-11")[0], 1)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller") as caught:
        _submit(request_, Sbatch(*[silent] * 20))
    assert caught.value.exit_code == 1


def test_a_timeout_is_not_tried_again_since_the_job_may_have_been_taken(request_: Request) -> None:
    sbatch = Sbatch(
        ("", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", 1)
    )
    with pytest.raises(SlurmError):
        _submit(request_, sbatch)
    assert len(sbatch.calls) == 1


def test_more_nodes_than_the_partition_has_are_refused_before_slurm_is_asked() -> None:
    with pytest.raises(ConfigError, match="make 5 nodes, partition main has 4") as caught:
        check_size(settings(), {"main": 4}, "main")
    assert caught.value.hint == "write spares: 0"
    with pytest.raises(ConfigError, match="partition main has 3") as caught:
        check_size(settings(), {"main": 3}, "main")
    assert caught.value.hint == "write at most 3 nodes, spares included"


@pytest.mark.parametrize(
    ("sizes", "default", "partition"),
    [({"main": 5}, "main", ""), ({}, "", ""), ({"main": 1}, "main", "other"), ({"a": 1, "b": 9}, "", "a,b")],
)
def test_a_job_that_may_fit_is_left_to_slurm(sizes: dict[str, int], default: str, partition: str) -> None:
    overrides = [f"slurm.partition='{partition}'"] if partition else []
    check_size(settings(*overrides), sizes, default)


def test_a_machine_without_slurm_is_told_so(request_: Request) -> None:
    with pytest.raises(SlurmError, match="command not found: sbatch") as caught:
        submit(request_, {"PATH": "/nonexistent"})
    assert "--cluster local" in caught.value.hint
    assert not request_.settings.run_dir.exists()

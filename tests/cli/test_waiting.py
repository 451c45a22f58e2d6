"""--wait: following a job to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicron_hpc.cli.waiting import exit_code_of, follow, last_iteration
from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm.parsing import ExitCode, JobRecord
from unicron_hpc.slurm.states import parse_job_state


def _job(state: str, reason: str = "", code: ExitCode | None = None) -> JobRecord:
    return JobRecord("7", parse_job_state(state), reason=reason, exit_code=code)


def test_states_and_iterations_are_told_once_each(tmp_path: Path) -> None:
    answers = iter(
        [
            _job("PENDING", "Resources"),
            _job("PENDING", "Resources"),
            SlurmError("no answer"),
            _job("RUNNING"),
            _job("COMPLETING"),
            _job("COMPLETED", code=ExitCode(0, 0)),
        ]
    )

    def ask(job_id: str) -> JobRecord:
        answer = next(answers)
        if isinstance(answer, SlurmError):
            raise answer
        if answer.state.name == "RUNNING":
            (tmp_path / "metrics.jsonl").write_text('{"iteration": 3}\n{"iteration": 4}\n{"itera')
        return answer

    said: list[str] = []
    assert follow("7", tmp_path, said.append, ask=ask, wait=lambda s: None) == 0
    assert said == [
        "job 7: PENDING (Resources)",
        "job 7: RUNNING, iteration 4",
        "job 7: COMPLETING, iteration 4",
        "job 7: COMPLETED, iteration 4",
    ]


def test_a_slurm_that_stays_silent_is_an_error(tmp_path: Path) -> None:
    def ask(job_id: str) -> JobRecord:
        raise SlurmError("no answer")

    with pytest.raises(SlurmError):
        follow("7", tmp_path, lambda line: None, ask=ask, wait=lambda s: None)


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (_job("COMPLETED", code=ExitCode(0, 0)), 0),
        (_job("FAILED", code=ExitCode(3, 0)), 3),
        (_job("CANCELLED", code=ExitCode(0, 15)), 143),
        (_job("TIMEOUT", code=ExitCode(0, 0)), 1),
        (_job("UNKNOWN"), 1),
    ],
)
def test_the_exit_code_is_the_jobs(job: JobRecord, code: int) -> None:
    assert exit_code_of(job) == code


def test_no_metrics_are_no_iteration(tmp_path: Path) -> None:
    assert last_iteration(tmp_path / "metrics.jsonl") is None
    (tmp_path / "metrics.jsonl").write_text("[]\nnull\n")
    assert last_iteration(tmp_path / "metrics.jsonl") is None

"""Following a job until it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import queries
from unicron_hpc.slurm.parsing import JobRecord

#: Seconds between two questions to slurmctld; sites ask for no more than a few a minute from one user.
_ASK_EVERY = 2.0
_SLOWEST = 10.0
#: Questions in a row that Slurm may leave without an answer.
_PATIENCE = 30


def follow(
    job_id: str,
    run_folder: Path,
    say: Callable[[str], None],
    *,
    ask: Callable[[str], JobRecord] = queries.job,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Wait for a job's end and tell of its states and iterations.

    Returns
    -------
    int
        0 when the job completed; else its exit code, 128 + signal, or 1.

    Raises
    ------
    SlurmError
        When Slurm has not answered for minutes.
    """
    told, silent, pause = "", 0, _ASK_EVERY
    while True:
        try:
            record = ask(job_id)
            silent = 0
        except SlurmError:
            silent += 1
            if silent > _PATIENCE:
                raise
            wait(_SLOWEST)
            continue
        line = _progress(record, run_folder)
        if line != told:
            say(line)
            told = line
        if record.state.terminal or record.state.name == "UNKNOWN":
            return exit_code_of(record)
        wait(pause)
        pause = min(pause * 1.2, _SLOWEST)


def exit_code_of(record: JobRecord) -> int:
    """The exit code that stands for how a job ended."""
    if record.state.succeeded:
        return 0
    if record.exit_code is None:
        return 1
    if record.exit_code.code:
        return record.exit_code.code
    return 128 + record.exit_code.signal if record.exit_code.signal else 1


def _progress(record: JobRecord, run_folder: Path) -> str:
    state = f"job {record.job_id}: {record.state.name}"
    if record.state.name == "PENDING" and record.reason:
        return f"{state} ({record.reason})"
    iteration = last_iteration(run_folder / "metrics.jsonl")
    return f"{state}, iteration {iteration}" if iteration is not None else state


def last_iteration(metrics: Path) -> int | None:
    """The newest iteration in a metrics file; None where there is none yet."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - 4096))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return int(json.loads(line)["iteration"])
        except (ValueError, KeyError, TypeError):
            continue  # a line that is still being written, or cut by the seek
    return None

"""A coordinator that may not decide for now, since too few nodes are in contact: what it hears waits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.events import within
from tests.supervisor.lone_coordinator import LoneJob
from unicron_hpc.detect.exits import HOST_MEMORY
from unicron_hpc.detect.severity import Blame, Finding, Severity
from unicron_hpc.report.journal import EVENTS, METRICS, SUMMARY, read_lines
from unicron_hpc.supervisor.messages import Heartbeat

ECC = Finding("ECC error", Severity.SEV1, Blame.NODE)


async def alone(job: LoneJob) -> None:
    """All others go silent, and slurmctld does not know them lost."""
    await job.until(lambda: bool(job.events("plans_ready")))  # else it is written when it is ready
    job.coordinator.tick(time.monotonic() + 60.0)
    assert not job.coordinator._board.may_decide


def written(job: LoneJob) -> list[Any]:
    """All that the run folder tells of the run."""
    board = job.coordinator._board
    assert board.journal.flush_file(10.0)
    assert board.commits.flush_file(10.0)
    told = [*read_lines(job.folder / EVENTS), *read_lines(job.folder / METRICS)]
    return [*told, (job.folder / SUMMARY).exists()]


def hears(job: LoneJob, what: str) -> None:
    match what:
        case "death":
            job.dies("n1")
        case "exception":
            job.raises("n1", "RuntimeError: CUDA error: an illegal memory access was encountered")
        case "the program's fault":
            job.raises("n1", "ValueError: shapes do not fit")
        case "a kill for memory":
            job.notices("n1", HOST_MEMORY, job.on("n1"))
        case "bad hardware":
            job.notices("n1", ECC)
        case "a commit":
            job.commit()
        case "a sign of life":
            job.coordinator.handle("n1", Heartbeat(True, 0))


@pytest.mark.parametrize(
    "what",
    [
        "death",
        "exception",
        "the program's fault",
        "a kill for memory",
        "bad hardware",
        "a commit",
        "a sign of life",
    ],
)
def test_whatever_it_hears_it_writes_nothing_and_begins_nothing(what: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path, on_slurm=True) as job:
            await alone(job)
            before, epoch = written(job), job.coordinator._board.epoch
            hears(job, what)
            await asyncio.sleep(0)
            assert written(job) == before
            assert job.coordinator._board.epoch == epoch
            task = job.coordinator._board.tasks["tiny"]
            assert not task.in_transition
            assert task._faults._concluding is None

    within(work())


def test_what_it_heard_is_seen_to_when_the_others_are_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path, on_slurm=True) as job:
            await alone(job)
            old = job.dies("n1")
            job.coordinator.tick(time.monotonic())  # the others have been heard in time after all
            assert job.coordinator._board.may_decide
            await job.running()
            job.commit()
            assert job.on("n1") != old
            assert job.rules == [("n1", "new process")]
            assert job.lost == []

    within(work())

"""The run without faults that all others are compared with; one per session."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from testcluster.api import Cluster

from .job import Job, submit_and_wait


@dataclass(frozen=True, slots=True)
class Reference:
    """A run that nothing happened to, submitted with `--wait`: the job, the exit code, what was told."""

    job: Job
    exit_code: int
    told: str
    losses: dict[int, float]


@pytest.fixture(scope="session")
def reference(embedded: Cluster) -> Reference:
    """The small training on four nodes of the embedded cluster."""
    job, code, told = submit_and_wait(embedded, "reference", checkpoint={"save_interval": 40})
    return Reference(job, code, told, job.losses())

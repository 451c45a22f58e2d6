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


_KEY = pytest.StashKey[Reference]()


@pytest.fixture(scope="session")
def reference(embedded: Cluster, request: pytest.FixtureRequest) -> Reference:
    """The small training on four nodes of the embedded cluster."""
    stash = request.config.stash
    if _KEY not in stash:  # every module that imports this fixture has one of its own; the run is shared
        job, code, told = submit_and_wait(embedded, "reference", checkpoint={"save_interval": 40})
        stash[_KEY] = Reference(job, code, told, job.losses())
    return stash[_KEY]

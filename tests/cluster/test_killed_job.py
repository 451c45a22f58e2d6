"""A job that is killed with all its agents on a real cluster: what its followers are told."""

from __future__ import annotations

import json

import pytest
from testcluster.api import Cluster

from .job import ENVIRONMENT, STATUS, submit

pytestmark = pytest.mark.cluster


def test_a_killed_job_ends_its_followers_and_is_not_said_to_run(embedded: Cluster) -> None:
    job = submit(embedded, "killed", slurm={"nodes": 2})
    job.wait_iteration(2)
    with job.follower() as follower:
        # All at once, the batch script too: nobody is left to write how it ended.
        # (Some end by themselves between the look and the kill, since their agent has gone.)
        embedded.exec(["kill", "-KILL", *map(str, job.left_over())], check=False)
        ended = job.wait_end()
        told, said = follower.communicate(timeout=180)
    assert job.events("job_finished") == []
    assert "begins: " in told
    assert f"Slurm has job {job.job_id} as {ended.state.name}" in said
    assert follower.returncode == 3
    shown = embedded.exec([STATUS, "status", "--json", str(job.folder)], env=ENVIRONMENT).stdout
    assert json.loads(shown)["state"] == ended.state.name

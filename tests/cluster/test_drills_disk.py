"""The drill of a full disk: a run folder on a file system of its own, filled while the job trains."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from testcluster.api import Cluster

from .conftest import require_driver
from .drills import Drilled, assert_passed, drill
from .job import ENVIRONMENT, SUBMIT, Job, write_settings

pytestmark = pytest.mark.cluster

SECONDS = 6
#: A checkpoint every second or so: some of them meet the full disk.
SAVE_INTERVAL = 10


@pytest.fixture(scope="module")
def small_disk() -> Iterator[Path]:
    """A file system of 96 MiB; mounted before the cluster of this module, which then sees it."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    with tempfile.TemporaryDirectory(prefix="unicron-small-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=96m,mode=0777", "drill", folder]
        subprocess.run(mount, check=True, timeout=30)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True, timeout=30)


@dataclass(frozen=True, slots=True)
class Filled:
    """The job, ended by itself, and what came of the drill."""

    job: Job
    drilled: Drilled


@pytest.fixture(scope="module")
def filled(small_disk: Path) -> Iterator[Filled]:
    """Two nodes that save often, and a spare that must not be needed."""
    require_driver("embedded")
    with Cluster(f"f{os.getpid()}") as cluster:
        cluster.up(nodes=3)
        path = write_settings(
            cluster,
            "full",
            slurm={"nodes": 2, "spares": 1},
            model={"hidden_size": 64},
            train={"pipeline_model_parallel_size": 1, "train_iters": 100_000},
            checkpoint={"save_interval": SAVE_INTERVAL},
        )
        words = [SUBMIT, "--json", f"--set=run_dir={small_disk / 'runs'}", str(path)]
        told = json.loads(cluster.exec(words, env=ENVIRONMENT).stdout)
        job = Job(cluster, told["job_id"], Path(told["run_dir"]))
        job.wait_event("checkpoint_saved", count=2)
        drilled = drill(job, "disk-full", f"--seconds={SECONDS}")
        if not job.events("job_finished"):
            job.wait_event("checkpoint_saved", count=len(job.events("checkpoint_saved")) + 1)
        job.cancel()
        job.wait_end()
        yield Filled(job, drilled)


def test_a_full_disk_is_blamed_on_nobody_and_training_goes_on(filled: Filled) -> None:
    assert_passed(filled.drilled)
    assert filled.job.events("agent_lost") == []
    assert filled.job.events("drain_requested") == []


def test_what_was_done_meanwhile_is_in_the_record_afterwards(filled: Filled) -> None:
    losses = filled.job.losses()
    assert list(losses) == list(range(1, max(losses) + 1))


def test_checkpoints_fail_meanwhile_and_are_saved_again_afterwards(filled: Filled) -> None:
    made = filled.drilled.told["injected"]
    failed = [e["time"] for e in filled.job.events("checkpoint_failed")]
    assert failed != []
    assert all(made < time < made + SECONDS + 5 for time in failed)
    later = [e for e in filled.job.events("checkpoint_saved") if e["time"] > made + SECONDS]
    assert later != []

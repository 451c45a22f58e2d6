"""A training submitted to a test cluster with `unicron-sbatch`, as its user would."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testcluster.api import Cluster

from unicron_hpc.slurm import bad_nodes
from unicron_hpc.slurm.parsing import JobRecord, parse_show_job

from .run import Run, processes_with, settings_text
from .waiting import until

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin" if (ROOT / ".venv").exists() else Path(sys.executable).parent
SUBMIT = str(BIN / "unicron-sbatch")
STATUS = str(BIN / "unicron")
TEXT = ROOT / "templates" / "data" / "tiny.txt"
#: Whatever is installed, this tree is what is tested; jobs inherit it from who submits them.
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


class Job(Run):
    """One submitted training.

    Parameters
    ----------
    cluster
        Where it runs.
    job_id, folder
        What `unicron-sbatch --json` said.
    """

    def __init__(self, cluster: Cluster, job_id: str, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.job_id = job_id

    def record(self) -> JobRecord:
        """Return what slurmctld says of the job."""
        shown = self.cluster.exec(["scontrol", "show", "job", "--oneliner", self.job_id])
        return parse_show_job(shown.stdout)[self.job_id]

    def output(self) -> str:
        """Return the job's log: what the batch script and its step wrote."""
        path = self.folder.parent / f"{self.folder.name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_end(self, *, seconds: float = 180.0) -> JobRecord:
        """Return the job's record once Slurm has it ended."""
        try:
            return until(self.record, lambda record: record.state.terminal, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def left_over(self) -> dict[int, str]:
        """Return every process on any node that this job started and that still lives."""
        return processes_with(f"SLURM_JOB_ID={self.job_id}", f"SLURM_SUBMIT_DIR={self.cluster.shared_dir}")

    def signal_rank(self, rank: Mapping[str, Any], name: str) -> None:
        """Send a signal to a rank of `ranks()`, as its owner would on its node."""
        self.cluster.exec(["kill", f"-{name}", str(rank["pid"])], node=rank["node"])

    def cancel(self) -> None:
        """Have Slurm cancel it, as its owner."""
        self.cluster.exec(["scancel", self.job_id])

    @contextmanager
    def follower(self) -> Iterator[subprocess.Popen[str]]:
        """Run `unicron events --follow` for it, as its owner; ended with the block if it has not by then."""
        words = ["env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), STATUS, "events", "-f"]
        argv = self.cluster.exec_command([*words, str(self.folder)])
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


@contextmanager
def as_new_afterwards(cluster: Cluster) -> Iterator[None]:
    """Bring the cluster's nodes back and cancel its jobs, however the block ends."""
    try:
        yield
    finally:
        cluster.reset()
        forget_bad_nodes(cluster)


def forget_bad_nodes(cluster: Cluster) -> None:
    """Have later submissions take all nodes again; those that only stood still show no sign of a repair."""
    (cluster.shared_dir / "runs" / bad_nodes.FILE).unlink(missing_ok=True)


def write_settings(cluster: Cluster, name: str, **sections: Mapping[str, Any]) -> Path:
    """Write a train.yaml and its text into the cluster's shared folder."""
    text = cluster.shared_dir / "tiny.txt"
    if not text.exists():
        shutil.copy(TEXT, text)
        text.chmod(0o644)
    path = cluster.shared_dir / f"{name}.yaml"
    path.write_text(settings_text(name=name, **sections))
    path.chmod(0o644)
    return path


def submit(cluster: Cluster, name: str, **sections: Mapping[str, Any]) -> Job:
    """Submit the small training, changed section by section."""
    path = write_settings(cluster, name, **sections)
    told = json.loads(cluster.exec([SUBMIT, "--json", str(path)], env=ENVIRONMENT).stdout)
    return Job(cluster, told["job_id"], Path(told["run_dir"]))


def submit_and_wait(cluster: Cluster, name: str, **sections: Mapping[str, Any]) -> tuple[Job, int, str]:
    """Submit with `--wait`; return the job, the exit code and what was written to stderr."""
    path = write_settings(cluster, name, **sections)
    done = cluster.exec([SUBMIT, "--wait", "--json", str(path)], check=False, timeout=300, env=ENVIRONMENT)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    return Job(cluster, told["job_id"], Path(told["run_dir"])), done.returncode, done.stderr


def attempt(cluster: Cluster, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `unicron-sbatch`, however it ends."""
    return cluster.exec([SUBMIT, *options, str(path)], check=False, env=ENVIRONMENT)


def jobs_of(cluster: Cluster) -> set[str]:
    """Return the number of every job that slurmctld knows, ended ones too."""
    return set(re.findall(r"JobId=(\d+)", cluster.exec(["scontrol", "show", "job", "--oneliner"]).stdout))

"""Drills of the program's own faults: the run ends with the guilty rank's words, and costs no node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from testcluster.api import Cluster

from .drills import Drilled, assert_passed, drill
from .job import Job, as_new_afterwards, submit

pytestmark = pytest.mark.cluster

#: Name of the drill -> its options, and words of the traceback with which the run must end.
FAULTS: dict[str, tuple[tuple[str, ...], str]] = {
    "exception-forward": (("--error=AssertionError: drill: shapes differ",), "AssertionError: drill: shapes"),
    "oom": ((), "MemoryError: drill"),
    "nan": ((), "loss nan"),
}
#: Bytes that a node may have on top of what it has when the limit is set.
ROOM = 64 * 2**20
MEMORY = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that a drill ended."""

    job: Job
    drilled: Drilled
    words: str


def run(
    cluster: Cluster, name: str, *options: str, words: str, before: Callable[[], None] = lambda: None
) -> Ended:
    """Two replicas of one rank each and a spare, until the drill ends them."""
    with as_new_afterwards(cluster):
        job = submit(
            cluster,
            f"program-{name}",
            slurm={"nodes": 2, "spares": 1},
            train={"pipeline_model_parallel_size": 1, "train_iters": 100_000},
        )
        job.wait_iteration(10)
        before()
        drilled = drill(job, name, *options)
        if not job.events("job_finished"):
            job.cancel()
        job.wait_end()
        return Ended(job, drilled, words)


@pytest.fixture(scope="module", params=FAULTS)
def ended(embedded: Cluster, request: pytest.FixtureRequest) -> Ended:
    """One job for each fault."""
    options, words = FAULTS[request.param]
    return run(embedded, request.param, *options, words=words)


class TestAFaultOfTheProgram:
    def test_ends_the_run_as_the_drill_expects(self, ended: Ended) -> None:
        assert_passed(ended.drilled)

    def test_is_told_with_the_ranks_own_traceback(self, ended: Ended) -> None:
        (finished,) = ended.job.events("job_finished")
        assert finished["state"] == "failed"
        assert ended.words in finished["detail"]
        assert "Traceback" in finished["detail"]
        record = ended.job.record()
        assert record.state.name == "FAILED"

    def test_uses_no_spare_and_drains_nobody(self, ended: Ended) -> None:
        assert len(ended.job.events("rank_started")) == 2
        assert ended.job.events("drain_requested") == []
        assert ended.job.events("agent_lost") == []
        assert ended.job.left_over() == {}


@pytest.fixture
def limited(embedded: Cluster) -> Iterator[Path]:
    """A memory cgroup in which everything runs that Slurm starts on n2."""
    if os.geteuid() != 0 or not (MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("only root can make a memory cgroup (version 1)")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    home = MEMORY / next(line.split(":", 2)[2] for line in lines if ":memory:" in line).lstrip("/")
    folder = MEMORY / f"unicron-drill-{os.getpid()}"
    folder.mkdir()
    try:
        for pid in embedded.processes("n2") or ():
            (folder / "cgroup.procs").write_text(f"{pid}\n")
        yield folder
    finally:
        embedded.reset()
        for pid in (folder / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(f"{pid}\n")
        folder.rmdir()


def test_a_rank_that_the_kernel_kills_for_want_of_memory_ends_the_run_and_says_so(
    embedded: Cluster, limited: Path
) -> None:
    def tighten() -> None:
        used = int((limited / "memory.usage_in_bytes").read_text())
        (limited / "memory.limit_in_bytes").write_text(str(used + ROOM))

    ended = run(embedded, "oom", "--node=n2", f"--cgroup={limited}", words="", before=tighten)
    assert_passed(ended.drilled)
    assert "memory" in ended.drilled.told["error"]
    assert len(ended.job.events("rank_started")) == 2
    assert ended.job.events("drain_requested") == []

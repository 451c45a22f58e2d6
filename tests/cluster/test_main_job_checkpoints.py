"""A new submission goes on from the newest whole checkpoint, on however many nodes, and from no other."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from testcluster.api import Cluster

from .job import Job, as_new_afterwards, submit
from .reference import Reference, reference  # noqa: F401  (a fixture)
from .run import ITERATIONS, Run, worst_difference
from .waiting import until

pytestmark = pytest.mark.cluster
CHECKPOINT = {"save_interval": 20, "keep": 3}


@dataclass(frozen=True, slots=True)
class Resumed:
    """Four submissions of one training, each on another number of nodes.

    Attributes
    ----------
    first, second, third, fourth
        On four nodes, cancelled; on three, cancelled; on two, to its end; on one, with nothing left to do.
    whole
        Iterations of whole checkpoints when the second and when the third was submitted.
    truncated, half_written
        What was the newest checkpoint and what looked newer still when the third was submitted.
    left
        What lived of the first, once Slurm had cancelled it.
    """

    first: Job
    second: Job
    third: Job
    fourth: Job
    whole: tuple[list[int], list[int]]
    truncated: Path
    half_written: Path
    left: dict[int, str]


def saved(*runs: Run) -> list[int]:
    """Return the iterations of all sealed checkpoints, by the journals."""
    return sorted(event["iteration"] for run in runs for event in run.events("checkpoint_saved"))


def stop(job: Job) -> None:
    """Cancel a job and wait until Slurm has it ended."""
    job.cancel()
    record = job.wait_end()
    assert record.state.name == "CANCELLED"


@pytest.fixture(scope="module")
def resumed(embedded: Cluster) -> Resumed:
    """Two interrupted submissions, two damaged checkpoints, a submission to the end, one more."""
    with as_new_afterwards(embedded):
        first = submit(embedded, "resumed", checkpoint=CHECKPOINT)
        first.wait_event("checkpoint_saved", iteration=20)
        stop(first)
        left = until(first.left_over, lambda found: not found, seconds=30)
        whole_for_second = saved(first)

        one, three = {"pipeline_model_parallel_size": 1}, {"pipeline_model_parallel_size": 3}
        second = submit(embedded, "resumed", slurm={"nodes": 3}, train=three, checkpoint=CHECKPOINT)
        second.wait_event("checkpoint_saved", count=2)
        stop(second)
        whole_for_third = saved(first, second)

        folder = second.folder.parent / "checkpoints" / "resumed"
        truncated = folder / f"iter_{whole_for_third[-1]:07d}"
        half_written = folder / f"iter_{whole_for_third[-1] + 20:07d}.partial-7"
        shutil.copytree(truncated, half_written)
        (half_written / "manifest.json").unlink()
        largest = max(truncated.iterdir(), key=lambda path: path.stat().st_size)
        with largest.open("rb+") as file:
            file.truncate(largest.stat().st_size // 2)
        shutil.chown(half_written, embedded.status()["user"])

        third = submit(embedded, "resumed", slurm={"nodes": 2}, checkpoint=CHECKPOINT)
        third.wait_end()

        fourth = submit(embedded, "resumed", slurm={"nodes": 1}, train=one, checkpoint=CHECKPOINT)
        fourth.wait_end()
        return Resumed(
            first, second, third, fourth, (whole_for_second, whole_for_third), truncated, half_written, left
        )


def first_iteration(job: Job) -> int:
    """Return the first iteration that a job committed."""
    return min(job.losses())


def test_a_cancelled_job_leaves_no_process_and_says_that_it_was_cancelled(resumed: Resumed) -> None:
    assert resumed.left == {}
    summary = resumed.first.summary()
    assert summary is not None
    assert summary["state"] == "cancelled"
    assert resumed.first.events("job_finished")[-1]["state"] == "cancelled"


def test_a_cancelled_job_saves_on_its_way_out_and_says_where(resumed: Resumed) -> None:
    asked, summary = resumed.first.events("stop_requested")[0], resumed.first.summary()
    last = resumed.first.events("checkpoint_saved")[-1]
    assert last["time"] > asked["time"]
    assert summary is not None
    assert summary["cause"].endswith(f"task resumed is saved at iteration {last['iteration']}")


def test_a_new_submission_on_fewer_nodes_goes_on_after_the_newest_checkpoint(resumed: Resumed) -> None:
    assert first_iteration(resumed.second) == resumed.whole[0][-1] + 1
    assert resumed.second.events("transition_finished")[0]["state_sources"]["disk"] > 0
    assert resumed.second.events("checkpoint_skipped") == []
    assert {rank["node"] for rank in resumed.second.ranks()} == {"n1", "n2", "n3"}


def test_a_truncated_and_a_half_written_checkpoint_are_named_and_passed_over(resumed: Resumed) -> None:
    told = {Path(event["path"]): event["reason"] for event in resumed.third.events("checkpoint_skipped")}
    assert told.keys() == {resumed.truncated, resumed.half_written}
    assert "half-written" in told[resumed.half_written]
    assert " bytes" in told[resumed.truncated]
    assert first_iteration(resumed.third) == resumed.whole[1][-2] + 1


def test_the_last_submission_ends_completed(resumed: Resumed) -> None:
    assert resumed.third.record().state.name == "COMPLETED"
    assert resumed.third.iteration() == ITERATIONS
    assert resumed.third.left_over() == {}


def test_a_submission_of_a_training_that_is_done_ends_completed_at_once(resumed: Resumed) -> None:
    assert resumed.fourth.record().state.name == "COMPLETED"
    assert resumed.fourth.losses() == {}


def test_no_submission_has_other_losses_than_the_uninterrupted_run(
    resumed: Resumed,
    reference: Reference,  # noqa: F811
) -> None:
    for job in (resumed.first, resumed.second, resumed.third):
        assert worst_difference(job.losses(), reference.losses) <= 1e-5

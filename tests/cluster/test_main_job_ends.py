"""A run ends finished, or failed with its cause told everywhere; bad input ends before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testcluster.api import Cluster

from .job import Job, as_new_afterwards, attempt, jobs_of, submit, submit_and_wait, write_settings
from .reference import Reference, reference  # noqa: F401  (a fixture)
from .run import ITERATIONS

pytestmark = pytest.mark.cluster
ONE_NODE = {"nodes": 1}
ONE_RANK = {"pipeline_model_parallel_size": 1}


def assert_failed_with(job: Job, cause: str) -> None:
    """Check that Slurm, the journal, the summary and the job's log all tell of the failure and its cause."""
    record = job.record()
    assert record.exit_code is not None
    assert (record.state.name, record.exit_code.code) == ("FAILED", 1)
    (finished,) = job.events("job_finished")
    summary = job.summary()
    assert summary is not None
    assert (finished["state"], summary["state"]) == ("failed", "failed")
    assert cause in finished["cause"] + finished["detail"]
    assert summary["cause"] == finished["cause"]
    assert "FAILED" in job.output()
    assert cause in job.output()
    assert job.left_over() == {}


class TestAFinishedRun:
    def test_ends_the_waiting_submitter_with_exit_code_0(self, reference: Reference) -> None:  # noqa: F811
        assert reference.exit_code == 0, reference.told
        assert "COMPLETED" in reference.told.splitlines()[-1]

    def test_leaves_losses_summary_and_no_process(self, reference: Reference) -> None:  # noqa: F811
        assert list(reference.losses) == list(range(1, ITERATIONS + 1))
        summary = reference.job.summary()
        assert summary is not None
        assert (summary["state"], summary["incidents"]) == ("finished", [])
        assert reference.job.left_over() == {}


class TestARunThatCannotGoOn:
    def test_fails_when_fewer_nodes_are_left_than_it_needs(self, embedded: Cluster) -> None:
        with as_new_afterwards(embedded):
            job = submit(embedded, "too-few", slurm={"nodes": 2}, train=ONE_RANK, recovery={"min_nodes": 2})
            job.wait_iteration(5)
            embedded.kill_node("n2")
            job.wait_end()
            assert_failed_with(job, "1 nodes are left, recovery.min_nodes is 2")

    def test_fails_at_once_when_the_loss_is_not_finite(self, embedded: Cluster) -> None:
        lr = {"lr": 1e30, "lr_warmup_iters": 0}
        job, code, told = submit_and_wait(embedded, "not-finite", slurm=ONE_NODE, train={**ONE_RANK, **lr})
        assert code == 1
        assert "FAILED" in told.splitlines()[-1]
        assert_failed_with(job, "not finite")
        assert len(job.events("rank_started")) == 1  # no restart helps, none is tried

    def test_fails_at_once_when_the_text_is_shorter_than_a_sequence(self, embedded: Cluster) -> None:
        short = embedded.shared_dir / "short.txt"
        short.write_text("abc")
        short.chmod(0o644)
        job = submit(embedded, "short", slurm=ONE_NODE, train=ONE_RANK, data={"text": "short.txt"})
        job.wait_end()
        assert_failed_with(job, "the data of task short could not be prepared")
        assert job.events("rank_started") == []

    def test_fails_at_once_when_a_token_is_outside_the_vocabulary(
        self,
        embedded: Cluster,
        reference: Reference,  # noqa: F811
    ) -> None:
        prefix = json.loads((reference.job.folder / "data-reference.json").read_text())["prefix"]
        job = submit(
            embedded,
            "token",
            slurm=ONE_NODE,
            train=ONE_RANK,
            model={"vocab_size": 64},
            data={"text": None, "path": prefix},
        )
        job.wait_end()
        assert_failed_with(job, "the data contains token 256, the vocabulary ends at 63")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt key": ({"train": {"trian_iters": 5}}, "train_iters"),
    "more spares than the partition has": ({"slurm": {"nodes": 4, "spares": 3}}, "write spares: 2"),
    "layers that no layout can place": (
        {"train": {"pipeline_model_parallel_size": 7}},
        "pipeline_model_parallel_size",
    ),
    "a batch that does not divide": ({"train": {"micro_batch_size": 3}}, "global_batch_size"),
}


class TestBadInput:
    @pytest.mark.parametrize("what", BAD)
    def test_ends_with_exit_code_2_and_submits_nothing(self, embedded: Cluster, what: str) -> None:
        sections, hint = BAD[what]
        before = jobs_of(embedded)
        path = write_settings(embedded, "bad", **sections)
        done = attempt(embedded, path)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert hint in done.stderr
        assert jobs_of(embedded) == before
        assert left_behind(embedded) == []

    def test_a_refusal_by_sbatch_shows_its_own_words(self, embedded: Cluster) -> None:
        before = jobs_of(embedded)
        done = attempt(embedded, write_settings(embedded, "bad"), "--partition=nowhere")
        assert done.returncode == 2
        assert "invalid partition specified: nowhere" in done.stderr
        assert jobs_of(embedded) == before


def left_behind(cluster: Cluster) -> list[Path]:
    """Return folders of a job named `bad` that was never submitted."""
    runs = cluster.shared_dir / "runs"
    return [*runs.glob("bad-[0-9]*"), *runs.glob(".staged-bad.*")]

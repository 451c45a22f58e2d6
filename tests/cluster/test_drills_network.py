"""Drills of the network, in Docker: a link that loses packets, and a node that is cut off."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from testcluster.api import Cluster

from .drills import SETTLE, Drilled, assert_passed, drill_from_here
from .job import Job, as_new_afterwards, submit
from .reference import Reference, reference  # noqa: F401  (a fixture)
from .run import ITERATIONS, worst_difference

pytestmark = [pytest.mark.cluster, pytest.mark.docker]


@dataclass(frozen=True, slots=True)
class Drills:
    """The job, cancelled after both drills, and what came of each."""

    job: Job
    lossy: Drilled
    cut: Drilled


@pytest.fixture(scope="module")
def drills(docker: Cluster) -> Drills:
    """Three nodes and a spare, two ranks on each."""
    with as_new_afterwards(docker):
        job = submit(
            docker,
            "network",
            slurm={"nodes": 3, "spares": 1, "ranks_per_node": 2},
            train={"train_iters": 100_000, "lr_decay_iters": ITERATIONS},
        )
        job.wait_iteration(10)

        def command(verb: str, *options: str) -> str:
            return " ".join([*docker.command(verb, *options), "{node}"])

        lossy = drill_from_here(
            job,
            "link-loss",
            "--node=n3",
            "--seconds=10",
            f"--with={command('link-loss', '--percent=30')}",
            f"--undo={command('link-loss', '--percent=0')}",
        )
        job.wait_iteration(job.iteration() + SETTLE)
        cut = drill_from_here(job, "node-cut", "--node=n2", f"--with={command('cut-node')}")
        job.cancel()
        job.wait_end()
        return Drills(job, lossy, cut)


def test_a_link_that_loses_packets_is_blamed_on_no_other_node(drills: Drills) -> None:
    assert_passed(drills.lossy)
    assert set(drills.lossy.told["lost"]) <= {"n3"}


def test_a_node_that_is_cut_off_is_named_and_replaced_while_training_goes_on(drills: Drills) -> None:
    assert_passed(drills.cut)
    assert drills.cut.told["lost"] == ["n2"]
    assert drills.cut.told["error"] == "lost connection"


def test_the_losses_are_those_of_the_run_without_faults(
    drills: Drills,
    reference: Reference,  # noqa: F811
) -> None:
    losses = drills.job.losses()
    compared = {iteration: loss for iteration, loss in reference.losses.items() if iteration in losses}
    assert len(compared) > SETTLE
    assert worst_difference(compared, losses) <= 1e-5

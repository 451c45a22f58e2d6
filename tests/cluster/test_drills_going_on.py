"""Drills after which training goes on, all against one running job: ranks, agents and nodes that fail."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from testcluster.api import Cluster

from .drills import Drilled, assert_passed, drill_all
from .job import Job, as_new_afterwards, submit
from .run import ITERATIONS, worst_difference

pytestmark = pytest.mark.cluster

#: The rate stays above 0 after its decay, so that losses tell of state that went astray late in the run, too.
RATE = {"lr_decay_iters": ITERATIONS, "min_lr": 1e-5}
#: What befalls ranks, and what must have been said of it.
RANKS = {
    "kill": "killed (SIGKILL)",
    "segfault": "crashed (SIGSEGV)",
    "abort": "crashed (SIGABRT)",
    "exception-forward": "",
    "exception-data": "",
    "stop-rank": "",
    "gil": "",
}
#: What befalls nodes. Two spares: the third lost node leaves three.
NODES = ("stop-agent", "node-pause", "node-kill")


@dataclass(frozen=True, slots=True)
class Drills:
    """The job, cancelled after its drills, what came of each, and the losses of a run without any."""

    job: Job
    found: dict[str, Drilled]
    reference: dict[int, float]


@pytest.fixture(scope="module")
def drills(embedded: Cluster) -> Drills:
    """Six nodes, two of them spares; then four without a fault for as many iterations."""
    with as_new_afterwards(embedded):
        job = submit(
            embedded,
            "drilled",
            slurm={"nodes": 4, "spares": 2},
            train={**RATE, "train_iters": 100_000},
            # Where ranks share cores, who is slow for some seconds says nothing (`test_drills_slow.py`).
            recovery={"slow_node_factor": 100, "max_faults_per_node": 100},
        )
        job.wait_iteration(10)
        plan = [
            *((name,) for name in RANKS),
            *((name, "--seconds=6") for name in NODES[:2]),
            (NODES[2],),
        ]
        found = drill_all(job, plan)
        job.cancel()
        last = job.iteration()
        job.wait_end()
    with as_new_afterwards(embedded):
        again = submit(embedded, "undrilled", slurm={"nodes": 4}, train={**RATE, "train_iters": last})
        again.wait_end()
        return Drills(job, found, again.losses())


@pytest.mark.parametrize("name", RANKS)
class TestARankThatFails:
    def test_is_named_and_mended_and_costs_nobody_anything(self, drills: Drills, name: str) -> None:
        assert_passed(drills.found[name])

    def test_is_the_only_one_that_gets_a_new_process(self, drills: Drills, name: str) -> None:
        told = drills.found[name].told
        assert told["replaced"] == [[told["node"], told["rank"]]]
        assert (told["lost"], told["drained"]) == ([], [])

    def test_is_told_of_in_the_words_for_it(self, drills: Drills, name: str) -> None:
        told = drills.found[name].told
        assert RANKS[name] in told["error"]
        assert told["severity"] == "SEV2"


@pytest.mark.parametrize("name", NODES)
class TestANodeThatFails:
    def test_is_named_and_replaced_while_training_goes_on(self, drills: Drills, name: str) -> None:
        assert_passed(drills.found[name])

    def test_is_the_only_one_that_is_taken_out_and_to_be_drained(self, drills: Drills, name: str) -> None:
        told = drills.found[name].told
        assert told["lost"] == told["drained"] == [told["node"]]
        assert told["error"] == "lost connection"


class TestTheRun:
    def test_has_the_losses_of_the_run_without_drills(self, drills: Drills) -> None:
        losses = drills.job.losses()
        assert list(losses) == list(range(1, max(losses) + 1))
        assert worst_difference(drills.reference, losses) <= 1e-5

    def test_had_no_incident_that_nobody_made(self, drills: Drills) -> None:
        made = [event for drilled in drills.found.values() for event in drilled.events("fault_detected")]
        assert drills.job.events("fault_detected") == made

    def test_leaves_nothing_on_any_node(self, drills: Drills) -> None:
        assert drills.job.left_over() == {}

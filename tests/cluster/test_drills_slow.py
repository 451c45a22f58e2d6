"""The drill `busy` against a rank with a core of its own: its node is called slow, and gets less to do."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from testcluster.api import Cluster

from .drills import Drilled, assert_passed, drill
from .job import Job, as_new_afterwards, submit
from .run import LAYERS, Event, worst_difference

#: One rank to a core: on shared ones they slow each other, and who is slow for some seconds says nothing.
RANKS = 2
CORES = len(os.sched_getaffinity(0))
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(CORES < RANKS, reason=f"{CORES} core for {RANKS} ranks: they slow each other"),
]

MICRO_BATCHES = 12
WINDOW = 8
#: Cores of one machine may differ by a tenth for good; the drill makes a node slower by far more.
FACTOR = 1.3
#: Computing takes longer than sending, so that shares count; the rate stays above 0 after its decay.
SHAPE = {
    "slurm": {"nodes": RANKS},
    "model": {"hidden_size": 128, "seq_length": 128},
}
TRAIN = {
    "global_batch_size": MICRO_BATCHES,
    "pipeline_model_parallel_size": 1,
    "lr_decay_iters": 120,
    "min_lr": 1e-5,
}


@dataclass(frozen=True, slots=True)
class Slow:
    """The job, the drill, the layouts before and after, and the losses of a run without any drill."""

    job: Job
    drilled: Drilled
    reference: dict[int, float]

    @property
    def node(self) -> str:
        return str(self.drilled.told["node"])


@pytest.fixture(scope="module")
def slow(embedded: Cluster) -> Slow:
    """Two nodes with a replica each; one is beside busy processes for some windows, and then no more."""
    with as_new_afterwards(embedded):
        job = submit(
            embedded,
            "slow",
            **SHAPE,
            train={**TRAIN, "train_iters": 100_000},
            recovery={
                "slow_node_window": WINDOW,
                "slow_node_factor": FACTOR,
                "slow_node_out_factor": 100,
            },
        )
        job.wait_iteration(40)
        drilled = drill(job, "busy", f"--seconds={3 * WINDOW}")
        job.wait_event("slow_node_recovered")
        given = load(job.events("plan_chosen")[0])
        job.wait("share for share again", lambda: load(job.events("plan_chosen")[-1]) == given)
        job.wait_iteration(job.iteration() + 20)
        job.cancel()
        last = job.iteration()
        job.wait_end()
    with as_new_afterwards(embedded):
        again = submit(embedded, "never-slow", **SHAPE, train={**TRAIN, "train_iters": last})
        again.wait_end()
        return Slow(job, drilled, again.losses())


def load(plan: Event) -> dict[str, int]:
    """Layers times micro-batches of every node of a `plan_chosen`."""
    found = dict.fromkeys(plan["nodes"], 0)
    for replica in plan["replicas"]:
        for stage in replica["stages"]:
            first, last = stage["layers"]
            for node in stage["nodes"]:
                found[node] += (last - first + 1) * replica["micro_batches"]
    return found


def test_its_node_is_called_slow_and_no_other(slow: Slow) -> None:
    assert_passed(slow.drilled)
    named = slow.job.events("slow_node")
    assert {event["node"] for event in named} == {slow.node}, named


def test_nobody_is_blamed_replaced_or_drained(slow: Slow) -> None:
    told = slow.drilled.told
    assert (told["named"], told["lost"], told["drained"], told["replaced"]) == ([], [], [], [])
    assert slow.job.events("fault_detected") == []


def test_it_gets_less_to_do_while_it_is_slow(slow: Slow) -> None:
    shared = slow.job.events("share_anew")[0]
    assert shared["node"] == slow.node
    before, after = slow.job.events("plan_chosen")[:2]
    assert load(before) == dict.fromkeys(before["nodes"], LAYERS * MICRO_BATCHES // RANKS)
    assert 0 < load(after)[slow.node] < load(before)[slow.node]
    assert sum(load(after).values()) == LAYERS * MICRO_BATCHES


def test_it_gets_its_share_back_when_it_is_as_fast_as_before(slow: Slow) -> None:
    recovered = slow.job.events("slow_node_recovered")[0]
    assert recovered["node"] == slow.node
    plans = slow.job.events("plan_chosen")
    assert load(plans[-1]) == load(plans[0]), [load(plan) for plan in plans]


def test_losses_are_those_of_a_run_that_was_never_slow(slow: Slow) -> None:
    losses = slow.job.losses()
    assert list(losses) == list(range(1, max(losses) + 1))
    assert worst_difference(slow.reference, losses) <= 1e-5

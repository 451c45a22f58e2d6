"""The node of the batch script, where the first coordinator sits, is a node like any other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from testcluster.api import Cluster

from .job import Job, as_new_afterwards, submit
from .reference import Reference, reference  # noqa: F401  (a fixture)
from .run import Event, worst_difference
from .three_faults import ranks_of, status

pytestmark = pytest.mark.cluster


@dataclass(frozen=True, slots=True)
class Beheaded:
    """A run whose batch node was killed on the way: the job, ended, and its status before and after."""

    job: Job
    batch_node: str
    before: Event
    after: Event


@pytest.fixture(scope="module")
def beheaded(embedded: Cluster) -> Beheaded:
    """Four nodes and no spare; the batch node dies at iteration 20."""
    with as_new_afterwards(embedded):
        job = submit(embedded, "beheaded")
        job.wait_iteration(20)
        batch_node = job.record().batch_host
        before = status(job)
        embedded.kill_node(batch_node)
        job.wait_recovered(count=1)
        after = status(job)
        job.wait_end()
        return Beheaded(job, batch_node, before, after)


def test_another_agent_becomes_coordinator_and_takes_the_dead_node_out(beheaded: Beheaded) -> None:
    assert beheaded.before["coordinator"] == beheaded.batch_node
    assert beheaded.after["coordinator"] != beheaded.batch_node
    (first, second) = beheaded.job.events("coordinator_elected")
    assert (first["node"], second["node"]) == (beheaded.batch_node, beheaded.after["coordinator"])
    assert second["term"] > first["term"]
    assert [event["node"] for event in beheaded.job.events("agent_lost")] == [beheaded.batch_node]


def test_the_others_keep_processes_and_state(beheaded: Beheaded) -> None:
    old = {rank["node"]: rank["pid"] for rank in ranks_of(beheaded.before)}
    new = {rank["node"]: rank["pid"] for rank in ranks_of(beheaded.after)}
    assert new == {node: pid for node, pid in old.items() if node in new}
    sources = beheaded.job.events("transition_finished")[-1]["state_sources"]
    assert sources["disk"] == 0


def test_the_job_ends_completed_though_no_batch_script_is_left_to_end_it(beheaded: Beheaded) -> None:
    record = beheaded.job.record()
    assert record.exit_code is not None
    assert (record.state.name, record.exit_code.code, record.exit_code.signal) == ("COMPLETED", 0, 0)
    assert beheaded.job.left_over() == {}
    summary = beheaded.job.summary()
    assert summary is not None
    assert summary["state"] == "finished"
    assert [incident["node"] for incident in summary["incidents"]] == [beheaded.batch_node]


def test_every_iteration_has_the_loss_of_the_run_without_faults(
    beheaded: Beheaded,
    reference: Reference,  # noqa: F811
) -> None:
    assert beheaded.job.losses().keys() == reference.losses.keys()
    assert worst_difference(beheaded.job.losses(), reference.losses) <= 1e-5

"""What is stopped but not dead: a rank, a node that wakes up again; and two faults at the same time."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from testcluster.api import Cluster

from .job import Job, as_new_afterwards, submit
from .reference import Reference, reference  # noqa: F401  (a fixture)
from .run import ITERATIONS, Event, processes_with, worst_difference
from .three_faults import ranks_of, status

pytestmark = pytest.mark.cluster

#: The run goes on after the last fault, so that a node that wakes up finds it running.
LONGER = 2 * ITERATIONS


@dataclass(frozen=True, slots=True)
class Paused:
    """A run in which a rank was stopped, a node and a rank died together, and a node slept and woke.

    Attributes
    ----------
    job
        The job, ended.
    stopped
        The rank that got SIGSTOP.
    before_stop, after_stop, after_double
        `unicron status --json` before the first fault, after it and after the second.
    sleeper_left
        The job's processes on the node that woke up, once its agent had ended; the job still ran.
    """

    job: Job
    stopped: Event
    before_stop: Event
    after_stop: Event
    after_double: Event
    sleeper_left: dict[int, str]


@pytest.fixture(scope="module")
def paused(embedded: Cluster) -> Paused:
    """Four nodes and a spare; every recovery is waited for."""
    with as_new_afterwards(embedded):
        longer = {"train_iters": LONGER}
        job = submit(embedded, "paused", slurm={"nodes": 4, "spares": 1}, train=longer)

        job.wait_iteration(10)
        before_stop = status(job)
        stopped = next(rank for rank in ranks_of(before_stop) if rank["node"] == "n2")
        job.signal_rank(stopped, "STOP")
        job.wait_recovered(count=1)
        after_stop = status(job)

        victim = next(rank for rank in ranks_of(after_stop) if rank["node"] == "n2")
        dying = next(rank for rank in ranks_of(after_stop) if rank["node"] == "n3")
        assert victim["layers"] != dying["layers"]  # else all copies of them would go together
        embedded.kill_node("n3")
        job.wait_event("transition_started", incident=2)
        job.signal_rank(victim, "KILL")  # while the coordinator still waits for the dead node
        job.wait_recovered(count=2)
        after_double = status(job)

        on_sleeper = (
            f"SLURM_JOB_ID={job.job_id}",
            "SLURMD_NODENAME=n4",
            f"SLURM_SUBMIT_DIR={embedded.shared_dir}",
        )
        assert len(processes_with(*on_sleeper)) >= 3  # agent, zygote, rank
        embedded.pause_node("n4")
        job.wait_event("agent_lost", node="n4")
        job.wait_recovered(count=3)
        embedded.resume_node("n4")
        job.wait("end of what woke up", lambda: not processes_with(*on_sleeper))
        seen = Paused(job, stopped, before_stop, after_stop, after_double, processes_with(*on_sleeper))
        assert job.record().state.name == "RUNNING"
        job.wait_end()
        return seen


class TestAStoppedRank:
    def test_is_named_by_its_agent_and_replaced_while_its_node_stays(self, paused: Paused) -> None:
        (fault,) = paused.job.events("fault_detected", incident=1)
        assert (fault["rank"], fault["node"]) == (paused.stopped["rank"], "n2")
        assert (fault["error"], fault["method"]) == ("rank stopped", "online statistical monitoring")
        old = {rank["rank"]: rank["pid"] for rank in ranks_of(paused.before_stop)}
        new = {rank["rank"]: rank["pid"] for rank in ranks_of(paused.after_stop)}
        assert {rank for rank in old if old[rank] != new[rank]} == {paused.stopped["rank"]}
        assert {node["name"]: node["role"] for node in paused.after_stop["nodes"]} == {
            "n1": "active",
            "n2": "active",
            "n3": "active",
            "n4": "active",
            "n5": "spare",
        }

    def test_has_the_stacks_of_all_ranks_taken_before_it_is_killed(self, paused: Paused) -> None:
        dumps = [
            (event["time"], event["node"], rank)
            for event in paused.job.events("stacks_dumped", epoch=paused.before_stop["epoch"])
            for rank in event["ranks"]
        ]
        taken = {rank["pid"]: rank for _, _, rank in dumps}
        ranks = ranks_of(paused.before_stop)
        assert taken.keys() == {rank["pid"] for rank in ranks}
        for rank in ranks:
            dump = taken[rank["pid"]]
            if rank["rank"] == paused.stopped["rank"]:
                assert ": T" in dump["state"]
            else:
                assert "in _iterate" in dump["stacks"]
            assert f"pid {rank['pid']}" in (paused.job.folder / "logs" / dump["file"]).read_text()
        replaced = paused.job.events("rank_started", node="n2")[1]
        assert max(when for when, node, _ in dumps if node == "n2") < replaced["time"]

    def test_is_replaced_with_state_from_a_peer(self, paused: Paused) -> None:
        (finished,) = paused.job.events("transition_finished", incident=1)[-1:]
        assert finished["state_sources"]["peer"] > 0
        assert finished["state_sources"]["disk"] == 0


class TestTwoFaultsAtOnce:
    def test_are_one_incident_and_one_transition(self, paused: Paused) -> None:
        causes = {(f["node"], f["error"]) for f in paused.job.events("fault_detected", incident=2)}
        assert causes == {("n3", "lost connection"), ("n2", "killed (SIGKILL)")}
        assert len(paused.job.events("transition_finished", incident=2)) == 1

    def test_cost_no_state(self, paused: Paused) -> None:
        (finished,) = paused.job.events("transition_finished", incident=2)
        assert finished["state_sources"]["disk"] == 0
        seats = {rank["rank"]: rank["node"] for rank in ranks_of(paused.after_double)}
        assert seats == {0: "n1", 1: "n2", 2: "n5", 3: "n4"}


class TestANodeThatWakesUpAfterItWasTakenOut:
    def test_ends_its_processes_while_the_job_goes_on(self, paused: Paused) -> None:
        assert paused.sleeper_left == {}
        log = (paused.job.folder / "logs" / "agent-n4.log").read_text()
        assert "n4 was taken out of the job" in log

    def test_writes_nothing_into_the_record_of_the_run(self, paused: Paused) -> None:
        lines = (paused.job.folder / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert [record["iteration"] for record in records] == list(range(1, LONGER + 1))
        epochs = [record["epoch"] for record in records]
        assert epochs == sorted(epochs)
        assert [event["node"] for event in paused.job.events("coordinator_elected")] == ["n1"]


class TestTheRun:
    def test_ends_completed_and_leaves_nothing(self, paused: Paused) -> None:
        assert paused.job.record().state.name == "COMPLETED"
        assert paused.job.left_over() == {}

    def test_has_the_losses_of_the_run_without_faults(
        self,
        paused: Paused,
        reference: Reference,  # noqa: F811
    ) -> None:
        losses = {iteration: paused.job.losses()[iteration] for iteration in reference.losses}
        assert worst_difference(losses, reference.losses) <= 1e-5

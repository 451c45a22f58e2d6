"""Two trainings in one allocation: who loses a node, who gives one, and who gets those of a finished task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from testcluster.api import Cluster

from unicron_hpc.report.journal import METRICS, read_lines

from .job import ENVIRONMENT, SUBMIT, Job, as_new_afterwards, write_settings
from .run import Event, worst_difference

pytestmark = pytest.mark.cluster

#: Iterations of each task: both train for a while after the loss, and one ends well before the other.
ITERATIONS = {"heavy": 240, "light": 160}
#: Iteration of the heavy task at which its node dies.
NODE_DIES_AT = 6
NODES = 5
#: Small layers and many micro-batches: computing counts, not sending, so that more nodes are worth more.
MODEL = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 16}


def tasks(light_stages: int) -> list[dict[str, Any]]:
    """Return the two tasks: replicas of the whole model, and one pipeline without any replica."""
    schedule = {"lr_decay_iters": 250, "pipeline_model_parallel_size": 1}
    heavy = {**schedule, "global_batch_size": 12, "train_iters": ITERATIONS["heavy"]}
    light = {
        **schedule,
        "global_batch_size": 6,
        "train_iters": ITERATIONS["light"],
        "pipeline_model_parallel_size": light_stages,
    }
    return [
        {"name": "heavy", "weight": 3, "train": heavy},
        {"name": "light", "weight": 1, "train": {**light, "seed": 4321}},
    ]


class Tasks(Job):
    """A job with several tasks."""

    def lines(self, task: str) -> list[Event]:
        """Return what was committed for a task, in order."""
        return [line for line in read_lines(self.folder / METRICS) if line["task"] == task]

    def losses_of(self, task: str) -> dict[int, float]:
        """Return a task's loss of each iteration."""
        return {line["iteration"]: line["loss"] for line in self.lines(task)}


def submit(cluster: Cluster, name: str, nodes: int, settings: Sequence[Mapping[str, Any]]) -> Tasks:
    """Submit these tasks as their user would."""
    path = write_settings(cluster, name, slurm={"nodes": nodes, "time": 10}, model=MODEL)
    path.write_text(json.dumps({**json.loads(path.read_text()), "tasks": list(settings)}))
    told = json.loads(cluster.exec([SUBMIT, "--json", str(path)], env=ENVIRONMENT).stdout)
    return Tasks(cluster, told["job_id"], Path(told["run_dir"]))


@dataclass(frozen=True, slots=True)
class Shared:
    """A run of both tasks in which a node of the heavy one died; ended.

    Attributes
    ----------
    job
        The job.
    lost, given
        The node that died, and the light task's that the heavy one got for it.
    begun, moved
        `plan_chosen` of each task at the start and after the loss.
    finished_first
        Name of the task that finished first.
    grown
        `plan_chosen` of the other one afterwards.
    """

    job: Tasks
    lost: str
    given: str
    begun: dict[str, Event]
    moved: dict[str, Event]
    finished_first: str
    grown: Event

    def transition(self, plan: Event) -> Event:
        """Return the `transition_finished` that carried a plan out."""
        (finished,) = self.job.events("transition_finished", epoch=plan["epoch"])
        return finished


def lose_a_node_of_the_heavy_task(cluster: Cluster) -> Shared:
    """Run both tasks, kill a node of the heavy one, and return when Slurm has ended the job."""
    job = submit(cluster, "shared", NODES, tasks(light_stages=2))
    started = [job.wait_event("transition_finished", task=name) for name in ITERATIONS]
    begun = {name: job.wait_event("plan_chosen", task=name) for name in ITERATIONS}
    # Plans for the loss of a node of either task, made after both of them had begun.
    latest = max(event["time"] for event in started)
    job.wait("plans", lambda: [e for e in job.events("plans_ready") if e["time"] > latest])
    job.wait(f"iteration {NODE_DIES_AT}", lambda: len(job.lines("heavy")) >= NODE_DIES_AT)

    coordinator = job.events("coordinator_elected")[-1]["node"]
    lost = next(node for node in begun["heavy"]["nodes"] if node != coordinator)
    cluster.kill_node(lost)
    moved = {name: job.wait_event("plan_chosen", task=name, count=2) for name in ITERATIONS}

    first = job.wait_event("task_finished")["task"]
    (other,) = ITERATIONS.keys() - {first}
    grown = job.wait_event("plan_chosen", task=other, count=3)
    job.wait_end()
    (given,) = set(begun["light"]["nodes"]) - set(moved["light"]["nodes"])
    return Shared(job, lost, given, begun, moved, first, grown)


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Shared:
    """One run; every test looks at another side of it."""
    cluster = request.getfixturevalue("embedded")
    with as_new_afterwards(cluster):
        return lose_a_node_of_the_heavy_task(cluster)


@pytest.fixture(scope="module")
def undisturbed(request: pytest.FixtureRequest) -> Tasks:
    """Both tasks with a node each, and no fault."""
    cluster = request.getfixturevalue("embedded")
    with as_new_afterwards(cluster):
        job = submit(cluster, "undisturbed", len(ITERATIONS), tasks(light_stages=1))
        job.wait_end()
        assert job.events("fault_detected") == [], job.story()
        return job


class TestAtTheStart:
    def test_every_node_belongs_to_one_task_and_the_heavy_one_has_more(self, shared: Shared) -> None:
        heavy, light = shared.begun["heavy"]["nodes"], shared.begun["light"]["nodes"]
        assert len(heavy) > len(light)
        assert sorted(heavy + light) == [f"n{number}" for number in range(1, NODES + 1)]

    def test_a_task_begins_with_the_pipeline_that_its_user_asked_for(self, shared: Shared) -> None:
        assert [len(replica["stages"]) for replica in shared.begun["light"]["replicas"]] == [2]
        assert {len(replica["stages"]) for replica in shared.begun["heavy"]["replicas"]} == {1}


class TestALostNodeOfTheHeavyTask:
    def test_is_replaced_by_one_of_the_light_task(self, shared: Shared) -> None:
        before, after = set(shared.begun["heavy"]["nodes"]), set(shared.moved["heavy"]["nodes"])
        assert after == before - {shared.lost} | {shared.given}
        assert set(shared.moved["light"]["nodes"]) == set(shared.begun["light"]["nodes"]) - {shared.given}

    def test_is_answered_from_the_table_for_both_tasks(self, shared: Shared) -> None:
        assert [plan["from_table"] for plan in shared.moved.values()] == [True, True]
        assert shared.job.events("table_miss") == []

    def test_is_an_incident_of_the_heavy_task_alone(self, shared: Shared) -> None:
        assert {event["task"] for event in shared.job.events("fault_detected")} == {"heavy"}
        moved = shared.transition(shared.moved["light"])
        assert moved["incident"] is None

    def test_has_its_state_from_a_replica(self, shared: Shared) -> None:
        sources = shared.transition(shared.moved["heavy"])["state_sources"]
        assert sources["peer"] > 0
        assert sources["disk"] == 0


class TestTheNodeThatChangesHands:
    def test_hands_over_the_state_that_it_alone_held(self, shared: Shared) -> None:
        (pipeline,) = shared.begun["light"]["replicas"]
        assert [shared.given] in [stage["nodes"] for stage in pipeline["stages"]]
        told = shared.transition(shared.moved["light"])
        assert [rank["node"] for rank in told["ranks"]] == shared.moved["light"]["nodes"]
        assert told["state_sources"]["peer"] > 0
        assert told["state_sources"]["disk"] == 0
        assert shared.job.events("state_lost") == []


class TestAFinishedTask:
    def test_leaves_its_nodes_to_the_other(self, shared: Shared) -> None:
        alive = {f"n{number}" for number in range(1, NODES + 1)} - {shared.lost}
        assert set(shared.grown["nodes"]) == alive
        assert shared.grown["from_table"] is True
        assert shared.transition(shared.grown)["state_sources"]["disk"] == 0


class TestTheRun:
    def test_ends_completed_with_exit_code_0_and_no_process_left(self, shared: Shared) -> None:
        record = shared.job.record()
        assert record.exit_code is not None
        assert (record.state.name, record.exit_code.code) == ("COMPLETED", 0)
        assert shared.job.left_over() == {}

    def test_sums_up_one_incident(self, shared: Shared) -> None:
        summary = shared.job.summary()
        assert summary is not None
        assert [(told["node"], told["error"]) for told in summary["incidents"]] == [
            (shared.lost, "lost connection")
        ]
        assert summary["iterations"] == ITERATIONS

    @pytest.mark.parametrize("task", ITERATIONS)
    def test_trains_every_iteration_of_both_tasks_once(self, shared: Shared, task: str) -> None:
        done = [line["iteration"] for line in shared.job.lines(task)]
        assert done == list(range(1, ITERATIONS[task] + 1))

    @pytest.mark.parametrize("task", ITERATIONS)
    def test_has_the_losses_of_the_run_without_faults(
        self, shared: Shared, undisturbed: Tasks, task: str
    ) -> None:
        expected = undisturbed.losses_of(task)
        assert shared.job.losses_of(task).keys() == expected.keys()
        assert worst_difference(shared.job.losses_of(task), expected) <= 1e-5

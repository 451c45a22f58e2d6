"""The coordinator's use of the planner: who is told what in which order, and plans made in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.planner.works import MACHINE, small_work
from tests.supervisor.events import within
from unicron_hpc.detect.severity import LOST_CONNECTION, Method
from unicron_hpc.planner.calibrate import Measured
from unicron_hpc.planner.candidate import Candidate
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.work import NodeSlots, TaskWork
from unicron_hpc.report.journal import EVENTS, Journal, read_lines
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.layout_choice import choose_layout
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import Role, TaskSnapshot
from unicron_hpc.supervisor.planning import Planning

#: Computing counts, not sending: every further node is worth something.
BUSY = replace(MACHINE, flops=1e9)
WORKS = {
    "light": small_work(name="light", hardware=BUSY, global_batch_size=12, pipeline=2, weight=0.5),
    "heavy": small_work(name="heavy", hardware=BUSY, global_batch_size=24, pipeline=1, weight=3.0),
}
EVIDENCE = Evidence(LOST_CONNECTION, Method.NODE_HEALTH, "n1", None, "no heartbeat")


class Task:
    """A task that runs at once on whatever nodes it is given, and notes what it was told.

    A real one needs ranks on real nodes to get that far; tests/cluster has it.
    """

    def __init__(self, work: TaskWork, told: list[tuple[str, str, Any]]) -> None:
        self.work, self._told = work, told
        self.name = work.name
        self.nodes: tuple[NodeSlots, ...] = ()
        self.layout: Layout | None = None
        self.candidate: Candidate | None = None
        self.finished = False
        self.measured: Sequence[Measured] = ()

    def assign(
        self,
        nodes: tuple[NodeSlots, ...],
        *,
        candidate: Candidate | None = None,
        from_table: bool = False,
        evidence: Evidence | None = None,
    ) -> None:
        self._told.append(("assign", self.name, (len(nodes), from_table, evidence)))
        planned = [node.name for node in self.nodes]
        self.nodes, self.candidate = nodes, candidate
        if nodes:
            self.layout = choose_layout(self.work, self.layout, nodes, planned, {}, candidate).layout

    def keep(self, nodes: tuple[NodeSlots, ...]) -> None:
        self._told.append(("keep", self.name, len(nodes)))
        self.nodes = nodes

    def use(self, work: TaskWork) -> None:
        self._told.append(("use", self.name, work))
        self.work = work

    def plan_again(self, nodes: tuple[NodeSlots, ...]) -> bool:
        self.nodes = nodes
        return True

    def on_node_lost(self, node: str) -> bool:
        return not self.finished and self.layout is not None and node in {s.node for s in self.layout.seats}


class Job:
    """A job of two tasks, five active nodes and perhaps spares, all of them there."""

    def __init__(self, folder: Path, spares: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.members = Members([f"n{number}" for number in range(1, 6 + spares)], 5)
        for node in self.members:
            node.heard, node.slots, node.warm = 0.0, 1, True
        self.told: list[tuple[str, str, Any]] = []
        self.tasks = {name: Task(work, self.told) for name, work in WORKS.items()}
        self.asked = 0
        self.together: Sequence[Collection[str]] = ()
        self.journal = Journal(folder)
        self.planning = Planning(
            self.tasks,  # type: ignore[arg-type]
            WORKS,
            5,
            self.members,
            self.journal,
            self.domains,
        )

    def domains(self) -> Sequence[Collection[str]]:
        self.asked += 1
        return self.together

    def lose(self, name: str) -> None:
        node = self.members.get(name)
        assert node is not None
        node.role = Role.LOST
        self.told.clear()
        self.planning.after_loss({name: EVIDENCE}, 4)

    async def refresh(self, *, times: int = 1) -> None:
        for _ in range(times):
            self.planning.refresh(3)
        await done()

    def held(self, task: str) -> set[str]:
        return {node.name for node in self.tasks[task].nodes}

    def assigned(self) -> dict[str, Any]:
        return {task: what for verb, task, what in self.told if verb == "assign"}

    def events(self, kind: str) -> list[dict[str, Any]]:
        assert self.journal.flush_file(10.0)
        return [event for event in read_lines(self.folder / EVENTS) if event["type"] == kind]


async def done() -> None:
    """Wait for what goes on in the background."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


def run(work: Coroutine[Any, Any, None]) -> None:
    within(work, 60.0)


def test_the_first_assignment_gives_every_task_its_nodes(tmp_path: Path) -> None:
    job = Job(tmp_path, spares=1)
    job.planning.begin()
    assert job.held("heavy") | job.held("light") == {"n1", "n2", "n3", "n4", "n5"}
    assert len(job.held("heavy")) == 3


def test_who_hits_no_seat_of_a_task_is_no_fault_of_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.planning.begin()
    lost = job.tasks["heavy"].nodes[1].name
    job.lose(lost)
    assert {task: what[2] for task, what in job.assigned().items()} == {"heavy": EVIDENCE, "light": None}


def test_a_node_that_changes_hands_is_given_before_it_is_taken(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.planning.begin()
    light = job.held("light")
    job.lose(job.tasks["heavy"].nodes[1].name)
    assert [task for verb, task, _ in job.told if verb == "assign"] == ["light", "heavy"]
    assert len(job.held("heavy") & light) == 1
    job.told.clear()
    job.lose(job.tasks["light"].nodes[0].name)  # now the heavy one gives
    assert next(task for verb, task, _ in job.told if verb == "assign") == "heavy"


def test_the_warm_spare_is_taken_before_the_cold_one(tmp_path: Path) -> None:
    job = Job(tmp_path, spares=2)
    cold = job.members.get("n6")
    assert cold is not None
    cold.warm = False
    job.planning.begin()
    job.lose("n2")
    assert "n7" in job.held("heavy") | job.held("light")
    assert "n6" not in job.held("heavy") | job.held("light")


def test_nodes_are_seated_in_the_allocations_order_whoever_is_warm_first(tmp_path: Path) -> None:
    """Which nodes hold copies of the same layers must not be an accident of the start."""
    job, usual = Job(tmp_path / "one"), Job(tmp_path / "other")
    for name in ("n1", "n3"):
        cold = job.members.get(name)
        assert cold is not None
        cold.warm = False
    for one in (job, usual):
        one.planning.begin()
    assert [job.tasks[name].layout for name in WORKS] == [usual.tasks[name].layout for name in WORKS]


def test_an_event_without_a_plan_made_ahead_is_told_as_a_miss(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.planning.begin()
    lost = job.tasks["heavy"].nodes[1].name
    job.lose(lost)
    (miss,) = job.events("table_miss")
    assert (miss["event"], miss["misses"]) == (f"loss of {lost}", 1)
    assert not any(what[1] for what in job.assigned().values())


def test_with_plans_made_ahead_there_is_no_miss_and_tasks_know_it(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        job.planning.begin()
        await job.refresh()
        assert len(job.events("plans_ready")) == 1
        job.lose(job.tasks["heavy"].nodes[1].name)
        assert all(what[1] for what in job.assigned().values())
        assert job.tasks["light"].candidate is not None  # one node less: how to run on it is known
        await job.refresh()
        job.tasks["light"].finished = True
        job.told.clear()
        job.planning.after_finish("light", 5)
        assert job.assigned() == {"light": (0, True, None), "heavy": (4, True, None)}
        assert job.events("table_miss") == []

    run(work())


def test_measured_iterations_correct_what_tasks_plan_with(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        job.planning.begin()
        layout = job.tasks["heavy"].layout
        assert layout is not None
        job.tasks["heavy"].measured = [Measured(layout, 50.0)]
        await job.refresh()
        assert job.tasks["heavy"].work.hardware != BUSY
        assert job.tasks["light"].work.hardware == BUSY
        (ready,) = job.events("plans_ready")
        assert ready["prediction_error"]["heavy"]["after"] < ready["prediction_error"]["heavy"]["before"]

    run(work())


def test_plans_of_a_situation_that_is_over_are_made_again_before_they_count(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        job.planning.begin()
        entered, go_on = threading.Event(), threading.Event()

        class Slow(list[Collection[str]]):
            """Nodes that fail together, read while the plans are made."""

            def __iter__(self) -> Iterator[Collection[str]]:
                entered.set()
                assert go_on.wait(30)
                return iter(())

        job.together = Slow()
        job.planning.refresh(3)
        await asyncio.to_thread(entered.wait, 30)
        job.lose(job.tasks["heavy"].nodes[1].name)  # while the plans are made
        job.planning.refresh(4)
        go_on.set()
        await done()
        job.lose(job.tasks["heavy"].nodes[1].name)
        assert all(what[1] for what in job.assigned().values())

    run(work())


def test_which_nodes_fail_together_is_asked_once(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        job.planning.begin()
        await job.refresh(times=3)
        await job.refresh()
        assert job.asked == 1
        assert len(job.events("plans_ready")) == 2  # three wishes at once are one

    run(work())


def test_without_plans_made_ahead_the_job_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        job.planning.begin()
        job.tasks["heavy"].measured = [Measured(job.tasks["heavy"].layout, -1.0)]  # type: ignore[arg-type]
        await job.refresh()
        assert job.events("plans_ready") == []
        job.lose(job.tasks["heavy"].nodes[1].name)
        assert len(job.held("heavy")) == 3

    run(work())


def test_a_successor_disturbs_no_task(tmp_path: Path) -> None:
    job = Job(tmp_path)
    known = [
        TaskSnapshot("heavy", 3, None, 7, False, True, ("n1", "n2", "n3")),
        TaskSnapshot("light", 3, None, 7, False, True, ("n4", "n5")),
    ]
    job.planning.adopt(known)
    assert sorted(job.told) == [("keep", "heavy", 3), ("keep", "light", 2)]
    assert job.held("light") == {"n4", "n5"}


def test_after_the_end_no_plans_are_made(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        job.planning.begin()
        job.planning.refresh(3)
        job.planning.close()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
        assert job.events("plans_ready") == []

    run(work())


def test_plans_reckon_with_slow_nodes_and_can_be_asked_whether_one_is_worth_having(tmp_path: Path) -> None:
    job = Job(tmp_path, spares=1)
    job.planning.begin()
    slow = job.tasks["light"].nodes[0].name

    async def work() -> None:
        await job.refresh()
        job.planning.reckon_with({slow: 4.0})
        await done()

    run(work())
    assert [event["slowdowns"] for event in job.events("plans_ready")] == [{}, {slow: 4.0}]
    # The task's next transition knows of it, whatever it is for.
    assert job.tasks["light"].nodes[0].slowdown == 4.0
    verdict = job.planning.better_without("light", slow)()
    assert verdict is not None
    assert verdict.better  # the spare steps in
    assert verdict.without_seconds < verdict.with_seconds
    assert job.planning.better_without("heavy", slow)() is None  # it is not its node


def test_a_task_shares_its_work_anew_on_its_own_nodes_as_slow_as_they_are(tmp_path: Path) -> None:
    job = Job(tmp_path, spares=1)
    job.planning.begin()
    before = job.tasks["light"].nodes

    async def work() -> None:
        job.planning.reckon_with({before[0].name: 4.0})
        assert job.planning.share_anew("light")  # at once, whatever is being planned in the background
        assert job.tasks["light"].nodes == (replace(before[0], slowdown=4.0), *before[1:])
        await done()

    run(work())
    gone = job.members.get(before[1].name)
    assert gone is not None
    gone.role = Role.LOST
    assert not job.planning.share_anew("light")

"""Which nodes each task has: at the start, after a loss, after another task's end; and plans made ahead."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.works import MACHINE, nodes, small_work
from tests.supervisor.examples import few
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.calibrate import Measured
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.outlook import at_start
from unicron_hpc.planner.work import NodeSlots, TaskWork
from unicron_hpc.supervisor.job_plan import Change, JobPlan, Nodes
from unicron_hpc.supervisor.layout_choice import choose_layout

#: Each example searches the layouts of a whole job several times.
fewer = settings(few, max_examples=10)
fewest = settings(few, max_examples=6)
#: Computing counts, not sending: every further node is worth something.
BUSY = replace(MACHINE, flops=1e9)


def work(name: str, **changes: object) -> TaskWork:
    return small_work(**{"name": name, "hardware": BUSY, "global_batch_size": 24, "pipeline": 1} | changes)


HEAVY, LIGHT = work("heavy", weight=3.0), work("light", weight=1.0)


class Job:
    """A job under its plan; tasks run the layouts that the coordinator would choose."""

    def __init__(self, *works: TaskWork, active: int, spares: int = 0) -> None:
        self.alive = nodes(active + spares)
        self.plan = JobPlan({work.name: work for work in works}, active)
        given = self.plan.begin(self.alive)
        self.layouts: dict[str, Layout] = {
            work.name: choose_layout(work, None, given[work.name], (), {}).layout for work in works
        }

    def prepare(self, domains: Sequence[Collection[str]] = ()) -> bool:
        return self.plan.install(self.plan.prepare(self.alive, self.layouts, {}, domains))

    def lose(self, *names: str) -> Change:
        self.alive = [node for node in self.alive if node.name not in names]
        return self.plan.after_loss(names, self.alive, self.layouts)

    def finish(self, task: str) -> Change:
        del self.layouts[task]
        return self.plan.after_finish(task, self.alive, self.layouts)

    def held(self, task: str) -> set[str]:
        return names(self.plan.nodes[task])

    def unused(self) -> set[str]:
        return names(self.alive).difference(*map(self.held, self.plan.works))


def names(some: Nodes | Sequence[NodeSlots]) -> set[str]:
    return {node.name for node in some}


@st.composite
def jobs(draw: st.DrawFn) -> tuple[TaskWork, ...]:
    """One to three small tasks."""
    return tuple(
        work(
            f"t{number}",
            weight=draw(st.sampled_from([0.2, 1.0, 3.0])),
            min_nodes=draw(st.integers(1, 2)),
            global_batch_size=draw(st.sampled_from([8, 12])),
            pipeline=draw(st.integers(1, 2)),
        )
        for number in range(draw(st.integers(1, 3)))
    )


class TestTheStart:
    def test_a_single_task_takes_the_active_nodes_and_leaves_the_spares(self) -> None:
        job = Job(HEAVY, active=3, spares=2)
        assert job.held("heavy") == {"c0", "c1", "c2"}

    def test_several_tasks_share_the_active_nodes_by_weight(self) -> None:
        job = Job(HEAVY, LIGHT, active=5, spares=1)
        assert len(job.held("heavy")) > len(job.held("light")) >= 1
        assert job.held("heavy").isdisjoint(job.held("light"))
        assert len(job.unused()) == 1

    def test_minimum_sizes_beyond_the_nodes_are_refused_with_what_would_do(self) -> None:
        with pytest.raises(PlanError, match="need 5 nodes"):
            Job(work("a", min_nodes=3), work("b", min_nodes=2), active=4)

    def test_a_task_gets_the_nodes_that_its_first_pipeline_needs(self) -> None:
        job = Job(HEAVY, work("light", weight=0.01, pipeline=3), active=5)
        assert len(job.held("light")) == 3
        assert [len(replica.stages) for replica in job.layouts["light"].replicas] == [3]

    def test_pipelines_that_do_not_fit_on_the_nodes_that_came_start_shallower(self) -> None:
        job = Job(work("a", pipeline=3), work("b", pipeline=3), active=5)
        assert all(job.plan.nodes.values())
        alone = Job(work("a", pipeline=3), active=2)
        assert all(len(replica.stages) < 3 for replica in alone.layouts["a"].replicas)

    @fewest
    @given(st.data(), st.integers(2, 4), st.integers(0, 1))
    def test_is_what_unicron_plan_shows(self, data: st.DataObject, active: int, spares: int) -> None:
        works, slow = data.draw(jobs()), data.draw(st.sampled_from([1.0, 1.0, 1.5, 3.0]))
        mine = [*nodes(active - 1), NodeSlots("slow", 1, slow)]
        try:
            shown = at_start(works, mine)
        except PlanError:
            assume(False)
            raise
        plan = JobPlan({work.name: work for work in works}, active)
        given_ = plan.begin([*mine, *(NodeSlots(f"spare{k}", 1, 3.0) for k in range(spares))])
        for work in works:
            chosen = choose_layout(work, None, given_[work.name], (), {})
            assert given_[work.name] == shown[work.name].nodes
            assert chosen.layout == shown[work.name].layout

    def test_leaves_slow_nodes_as_spares(self) -> None:
        plan = JobPlan({"heavy": HEAVY}, 3)
        assert names(plan.begin([NodeSlots("slow", 1, 1.5), *nodes(3)])["heavy"]) == {"c0", "c1", "c2"}

    def test_stages_that_share_a_node_need_fewer(self) -> None:
        plan = JobPlan({w.name: w for w in (HEAVY, work("light", weight=0.01, pipeline=3))}, 4)
        given = plan.begin(nodes(4, slots=2))
        assert {name: len(held) for name, held in given.items()} == {"heavy": 2, "light": 2}


class TestALoss:
    def test_takes_a_spare_first_the_best_one_and_nothing_else_changes(self) -> None:
        job = Job(HEAVY, LIGHT, active=4, spares=2)
        light, (lost, *kept) = job.plan.nodes["light"], sorted(job.held("heavy"))
        change = job.lose(lost)
        assert job.held("heavy") == {*kept, "c4"}
        assert change.nodes["light"] == light
        assert change.candidates == {"heavy": None, "light": None}
        assert change.from_table

    def test_of_nodes_of_two_tasks_takes_a_spare_for_each(self) -> None:
        job = Job(HEAVY, LIGHT, active=4, spares=2)
        before = {name: len(held) for name, held in job.plan.nodes.items()}
        job.lose(job.plan.nodes["heavy"][0].name, job.plan.nodes["light"][0].name)
        assert {name: len(held) for name, held in job.plan.nodes.items()} == before
        assert job.unused() == set()

    def test_of_a_spare_moves_nobody(self) -> None:
        job = Job(HEAVY, active=2, spares=1)
        assert job.lose("c2").nodes == {"heavy": tuple(nodes(2))}

    def test_without_a_spare_leaves_a_single_task_all_that_there_is(self) -> None:
        job = Job(HEAVY, active=4)
        change = job.lose("c1")
        assert names(change.nodes["heavy"]) == {"c0", "c2", "c3"}

    def test_leaves_a_single_task_also_the_nodes_that_the_reward_would_leave_idle(self) -> None:
        # One micro-batch, and a second stage would only cost: two nodes are no faster than one.
        slow = replace(BUSY, stage_seconds=10.0)
        job = Job(work("only", global_batch_size=2, hardware=slow), active=3, spares=1)
        change = job.lose("c0", "c1")
        assert names(change.nodes["only"]) == {"c2", "c3"}

    def test_of_more_nodes_than_spares_uses_the_spares_there_are(self) -> None:
        job = Job(HEAVY, active=3, spares=1)
        change = job.lose("c0", "c1")
        assert names(change.nodes["heavy"]) == {"c2", "c3"}

    def test_of_a_heavy_tasks_node_takes_one_from_a_light_task(self) -> None:
        job = Job(work("heavy", weight=3.0), work("light", weight=0.5, pipeline=2), active=5)
        assert [len(job.held("heavy")), len(job.held("light"))] == [3, 2]
        lost, light = job.plan.nodes["heavy"][1].name, job.held("light")
        job.lose(lost)
        assert len(job.held("heavy")) == 3
        assert len(job.held("heavy") & light) == 1
        assert job.held("light") == light - job.held("heavy")

    def test_of_a_light_tasks_node_leaves_the_heavy_one_alone(self) -> None:
        job = Job(work("heavy", weight=3.0), work("light", weight=0.5, pipeline=2), active=5)
        heavy = job.plan.nodes["heavy"]
        change = job.lose(job.plan.nodes["light"][0].name)
        assert change.nodes["heavy"] == heavy
        assert change.candidates["heavy"] is None
        assert len(job.held("light")) == 1

    def test_that_leaves_too_little_for_all_makes_the_lighter_task_wait(self) -> None:
        job = Job(work("heavy", weight=3.0, min_nodes=2), work("light", min_nodes=2), active=4)
        change = job.lose(job.plan.nodes["heavy"][0].name)
        assert len(change.nodes["heavy"]) >= 2
        assert change.nodes["light"] == ()

    def test_of_everything_leaves_no_plan(self) -> None:
        job = Job(HEAVY, active=2)
        with pytest.raises(PlanError):
            job.lose("c0", "c1")


class TestSlowNodes:
    def slow_down(self, job: Job, name: str, factor: float) -> None:
        job.alive = [replace(n, slowdown=factor) if n.name == name else n for n in job.alive]

    def test_are_the_last_spares_to_step_in(self) -> None:
        job = Job(HEAVY, active=2, spares=2)
        self.slow_down(job, "c2", 1.5)
        job.lose("c0")
        assert job.held("heavy") == {"c1", "c3"}

    @pytest.mark.parametrize("spares", [0, 1])
    def test_are_planned_for_with_what_is_known_now(self, spares: int) -> None:
        job = Job(HEAVY, active=4, spares=spares)
        self.slow_down(job, "c3", 2.0)
        (held,) = job.lose("c0").nodes.values()
        assert {n.name: n.slowdown for n in held if n.name != "c4"} == {"c1": 1.0, "c2": 1.0, "c3": 2.0}

    def test_are_a_new_situation_for_which_older_plans_do_not_count(self) -> None:
        job = Job(HEAVY, LIGHT, active=4)
        assert job.prepare()
        self.slow_down(job, "c3", 2.0)
        assert not job.lose("c0").from_table

    def test_are_told_apart_in_steps_so_that_a_new_measurement_changes_nothing(self) -> None:
        job = Job(HEAVY, LIGHT, active=4)
        self.slow_down(job, "c3", 1.52)
        assert job.prepare()
        self.slow_down(job, "c3", 1.48)
        self.slow_down(job, "c2", 1.04)
        assert job.lose("c0").from_table

    def test_have_plans_made_ahead_for_their_loss_too(self) -> None:
        job = Job(HEAVY, LIGHT, active=4)
        self.slow_down(job, "c3", 2.0)
        assert job.prepare()
        assert job.lose("c3").from_table

    def test_go_from_the_light_task_to_nobody_who_has_a_faster_one(self) -> None:
        job = Job(work("heavy", weight=3.0), work("light", weight=0.5, pipeline=2), active=5)
        slow, fast = sorted(job.held("light"))
        self.slow_down(job, slow, 1.5)
        job.finish("light")
        order = [node.name for node in job.plan.nodes["heavy"]]
        assert order.index(fast) < order.index(slow)


class TestTheEndOfATask:
    def test_leaves_its_nodes_to_the_others(self) -> None:
        job = Job(HEAVY, LIGHT, active=4)
        change = job.finish("heavy")
        assert change.nodes["heavy"] == ()
        assert names(change.nodes["light"]) == names(job.alive)
        assert change.candidates["light"] is not None

    def test_wakes_a_task_that_waits_also_on_fewer_nodes_than_it_began_with(self) -> None:
        job = Job(
            work("heavy", weight=3.0, min_nodes=2),
            work("deep", weight=0.1, pipeline=3),
            active=5,
        )
        assert len(job.held("deep")) == 3
        job.plan.nodes["deep"], job.layouts = (), {"heavy": job.layouts["heavy"]}  # it waits
        job.alive = job.alive[:2]
        job.plan.nodes["heavy"] = tuple(job.alive)
        change = job.finish("heavy")
        assert names(change.nodes["deep"]) == names(job.alive)
        assert change.candidates["deep"] is not None

    def test_is_not_planned_for_afterwards(self) -> None:
        job = Job(HEAVY, LIGHT, active=4)
        job.finish("heavy")
        job.layouts = {"light": choose_layout(LIGHT, None, job.plan.nodes["light"], (), {}).layout}
        prepared = job.plan.prepare(job.alive, job.layouts, {}, ())
        assert job.plan.install(prepared)
        assert not any("heavy" in (*event.launched, *event.finished) for event in prepared.table.likely())
        change = job.lose("c0")
        assert change.from_table
        assert change.nodes["heavy"] == ()
        assert names(change.nodes["light"]) == names(job.alive)

    def test_is_for_good(self) -> None:
        job = Job(HEAVY, LIGHT, work("third"), active=5)
        job.finish("heavy")
        change = job.finish("third")
        assert change.nodes["heavy"] == ()
        assert len(change.nodes["light"]) == 4  # a fifth would not shorten the iteration


class TestPlansMadeAhead:
    def test_are_there_for_the_loss_of_any_node_and_the_end_of_any_task(self) -> None:
        job = Job(HEAVY, LIGHT, active=5)
        assert job.prepare()
        for node in range(5):
            assert copy.deepcopy(job).lose(f"c{node}").from_table
        for task in ("heavy", "light"):
            assert copy.deepcopy(job).finish(task).from_table

    def test_are_there_for_two_nodes_only_where_they_fail_together(self) -> None:
        one, two = Job(HEAVY, LIGHT, active=5), Job(HEAVY, LIGHT, active=5)
        one.prepare()
        two.prepare(domains=[{"c0", "c1"}])
        assert not one.lose("c0", "c1").from_table
        assert two.lose("c0", "c1").from_table
        assert one.plan.nodes == two.plan.nodes

    def test_of_a_situation_that_is_over_are_not_installed(self) -> None:
        job = Job(HEAVY, LIGHT, active=4, spares=1)
        prepared = job.plan.prepare(job.alive, job.layouts, {}, ())
        job.lose(job.plan.nodes["light"][0].name)
        assert not job.plan.install(prepared)
        assert not job.lose(job.plan.nodes["heavy"][0].name).from_table

    def test_are_not_used_once_the_nodes_are_others(self) -> None:
        job = Job(HEAVY, LIGHT, active=4, spares=1)
        assert job.prepare()
        assert job.lose("c4").from_table  # a spare: nothing to plan
        assert not job.lose(job.plan.nodes["heavy"][0].name).from_table

    def test_serve_one_event_and_are_made_anew_for_the_next(self) -> None:
        job = Job(HEAVY, LIGHT, active=4)
        assert job.prepare()
        assert job.finish("light").from_table
        assert not job.lose("c0").from_table
        assert names(job.plan.nodes["heavy"]) == names(job.alive)

    def test_change_nothing_while_they_are_made(self) -> None:
        job = Job(HEAVY, LIGHT, active=5)
        before, works = dict(job.plan.nodes), dict(job.plan.works)
        job.plan.prepare(job.alive, job.layouts, {}, ())
        assert (job.plan.nodes, job.plan.works) == (before, works)

    def test_rest_on_measured_iterations_where_there_are_any(self) -> None:
        job = Job(HEAVY, LIGHT, active=4)
        measured = {"heavy": [Measured(job.layouts["heavy"], 123.0)], "light": []}
        prepared = job.plan.prepare(job.alive, job.layouts, measured, ())
        before, after = prepared.errors["heavy"]
        assert after < before
        assert prepared.works["heavy"].hardware != BUSY
        assert prepared.works["light"].hardware == BUSY
        assert prepared.errors.keys() == {"heavy"}


class TestASuccessor:
    def test_goes_on_with_the_nodes_that_tasks_have_and_are_left(self) -> None:
        plan = JobPlan({"heavy": HEAVY, "light": LIGHT}, 4)
        alive = [node for node in nodes(4) if node.name != "c1"]
        plan.adopt({"heavy": ["c0", "c1"], "light": ["c2"]}, alive)
        assert {name: names(held) for name, held in plan.nodes.items()} == {"heavy": {"c0"}, "light": {"c2"}}

    def test_does_not_ask_again_for_the_pipeline_of_the_start(self) -> None:
        deep = work("deep", pipeline=3)
        plan = JobPlan({"heavy": HEAVY, "deep": deep}, 2)
        plan.adopt({"heavy": ["c0", "c1"], "deep": []}, nodes(2))  # it waits
        change = plan.after_finish("heavy", nodes(2), {})
        assert names(change.nodes["deep"]) == {"c0", "c1"}

    def test_of_one_that_had_not_begun_begins_with_it(self) -> None:
        deep = work("deep", weight=0.01, pipeline=3)
        plan = JobPlan({"heavy": HEAVY, "deep": deep}, 5)
        plan.adopt({"heavy": [], "deep": []}, nodes(5))
        assert len(plan.begin(nodes(5))["deep"]) == 3


def begun(works: tuple[TaskWork, ...], active: int) -> Job:
    try:
        return Job(*works, active=active)
    except PlanError:
        assume(False)
        raise


@fewest
@given(jobs(), st.integers(2, 5), st.sampled_from([1.0, 1.5, 4.0]), st.data())
def test_a_plan_from_the_table_is_the_plan_that_would_be_computed(
    works: tuple[TaskWork, ...], active: int, slow: float, data: st.DataObject
) -> None:
    ahead = begun(works, active)
    ahead.alive[0] = replace(ahead.alive[0], slowdown=slow)
    assert ahead.prepare()
    # Both know how slow the node was when it is lost; one of them has no table then.
    at_once = copy.deepcopy(ahead)
    at_once.plan._table = None
    events = [("lose", node.name) for node in ahead.alive]
    events += [("finish", work.name) for work in works if len(works) > 1]
    verb, subject = data.draw(st.sampled_from(events))

    def outcome(job: Job) -> object:
        try:
            change: Change = getattr(job, verb)(subject)
        except PlanError as error:
            return str(error)
        return change.nodes, change.candidates

    assert outcome(ahead) == outcome(at_once)


@fewer
@given(jobs(), st.integers(2, 4), st.integers(0, 2), st.booleans(), st.data())
def test_no_node_ever_belongs_to_two_tasks_or_to_none_that_lives(
    works: tuple[TaskWork, ...], active: int, spares: int, ahead: bool, data: st.DataObject
) -> None:
    try:
        job = Job(*works, active=active, spares=spares)
    except PlanError:
        assume(False)
        raise
    for _ in range(2):
        if ahead:
            job.prepare()
        lost = data.draw(st.sampled_from(sorted(names(job.alive))))
        try:
            job.lose(lost)
        except PlanError:
            return  # no task can go on
        held = [node.name for task in job.plan.nodes.values() for node in task]
        assert len(held) == len(set(held)) <= active
        assert set(held) <= names(job.alive)
        for task, now in job.plan.nodes.items():
            assert not now or len(now) >= job.plan.works[task].min_nodes or len(works) == 1
        for task, now in job.plan.nodes.items():
            job.layouts.pop(task)
            if now:
                job.layouts[task] = choose_layout(job.plan.works[task], None, now, (), {}).layout
            else:
                return  # it waits

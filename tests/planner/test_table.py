"""Nodes go where they are worth most, and the plan for what comes next is there before it comes."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.brute import build
from tests.planner.works import MACHINE, nodes, small_work
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.curves import throughput
from unicron_hpc.planner.deal import deal, giving_order
from unicron_hpc.planner.hardware import hardware
from unicron_hpc.planner.search import best_layout, search
from unicron_hpc.planner.situation import Rewards, Situation, Standing, check_minimums
from unicron_hpc.planner.table import Event, Planner, Table
from unicron_hpc.planner.work import NodeSlots

# Compute-bound, so that throughput keeps rising with nodes.
BUSY = replace(MACHINE, flops=1e9)


@cache
def curve():
    """The same for all tasks: name, weight and least nodes do not change it."""
    return throughput(small_work(hardware=BUSY, global_batch_size=48), 12, 1)


def standing(name, held, **changes):
    work = small_work(name=name, hardware=BUSY, global_batch_size=48, **changes)
    mine = [NodeSlots(n, 1) for n in held]
    layout = best_layout(work, mine) if mine else None
    return Standing(work=work, nodes=tuple(held), curve=curve(), layout=layout)


def situation(*tasks, idle=(), active=None, **changes):
    everyone = [n for task in tasks for n in task.nodes] + list(idle)
    alive = {n: NodeSlots(n, 1) for n in everyone}
    return Situation(tasks=tasks, nodes=alive, active=len(alive) if active is None else active, **changes)


def test_throughput_never_falls_with_nodes_and_equals_the_search():
    work = small_work(hardware=BUSY, global_batch_size=24)
    curve = throughput(work, 8, 1)
    assert list(curve.flops) == sorted(curve.flops)
    assert curve.flops[0] == 0
    for count in range(1, 9):
        assert curve.seconds[count] == pytest.approx(search(work, nodes(count)).candidate.seconds)


def test_a_long_curve_comes_within_three_percent_of_the_search():
    work = small_work(num_layers=12, hardware=BUSY, global_batch_size=400)
    curve = throughput(work, 100, 1)
    for count in (1, 7, 23, 50, 77, 100):
        best = search(work, nodes(count)).candidate.seconds
        assert best * (1 - 1e-9) <= curve.seconds[count] <= best * 1.03


def test_idle_nodes_come_fastest_first_and_else_in_the_order_in_which_they_are_preferred():
    now = situation(standing("only", ["a0"]), idle=["i9", "i10"])
    slow = {"i8": NodeSlots("i8", 1, 1.5)}
    assert replace(now, nodes=slow | dict(now.nodes)).idle() == ("i9", "i10", "i8")


def test_losing_a_node_of_the_heavy_task_takes_one_from_the_light_task():
    heavy = standing("heavy", ["a0", "a1", "a2", "a3"], weight=2.0, min_nodes=2)
    light = standing("light", ["b0", "b1", "b2", "b3"], weight=0.1, min_nodes=1)
    # Faults are rare enough for the gain to outweigh the pause.
    planner = Planner(situation(heavy, light, fault_rate=1e-7))
    plan = planner.plan(planner.loss(["a2"]))
    heavier, lighter = plan.tasks["heavy"].nodes, plan.tasks["light"].nodes
    assert heavier >= 4 > lighter
    assert heavier + lighter == 7
    dealt = planner.deal(planner.loss(["a2"]), {n: t.nodes for n, t in plan.tasks.items()}, ["a2"])
    assert len({n.name for n in dealt["heavy"]} & {"b0", "b1", "b2", "b3"}) == heavier - 3
    assert {n.name for n in dealt["heavy"]} > {"a0", "a1", "a3"}


def test_frequent_faults_make_the_pause_of_a_second_task_too_dear():
    heavy = standing("heavy", ["a0", "a1", "a2", "a3"], weight=1.1, min_nodes=1)
    light = standing("light", ["b0", "b1", "b2", "b3"], weight=1.0, min_nodes=1)
    planner = Planner(situation(heavy, light, fault_rate=1.0, transition_seconds=100.0))
    plan = planner.plan(planner.loss(["a2"]))
    assert plan.tasks["light"].nodes == 4
    assert plan.tasks["light"].candidate is None


def test_a_finished_tasks_nodes_go_to_the_others():
    one = standing("one", ["a0", "a1"], weight=1.0)
    two = standing("two", ["b0", "b1"], weight=1.0)
    planner = Planner(situation(one, two, fault_rate=1e-7))
    plan = planner.plan(Event(finished=("two",)))
    assert plan.tasks.keys() == {"one"}
    assert plan.tasks["one"].nodes == 4
    assert plan.tasks["one"].candidate is not None


def test_a_launched_task_gets_its_minimum_from_the_others():
    one = standing("one", ["a0", "a1", "a2", "a3"], weight=1.0)
    new = standing("new", [], weight=0.001, min_nodes=2)
    planner = Planner(situation(one, new, fault_rate=1e-7))
    assert planner.plan(Event(launched=("new",))).tasks["new"].nodes == 2


def test_a_spare_takes_the_place_and_the_task_goes_on_as_it_was():
    one = standing("one", ["a0", "a1"])
    planner = Planner(situation(one, idle=["spare"], active=2))
    plan = planner.plan(planner.loss(["a1"]))
    assert plan.tasks["one"].nodes == 2
    assert plan.tasks["one"].candidate is None
    dealt = planner.deal(planner.loss(["a1"]), {"one": 2}, ["a1"])
    assert [n.name for n in dealt["one"]] == ["a0", "spare"]


def test_minimums_beyond_the_nodes_name_what_would_do():
    tasks = [standing("one", ["a0"], min_nodes=3), standing("two", ["b0"], min_nodes=4)]
    with pytest.raises(PlanError, match=r"need 7 nodes \(one 3, two 4\), there are 5") as caught:
        check_minimums(tasks, 5)
    assert "7 nodes would do" in caught.value.hint
    check_minimums(tasks, 7)


def test_after_too_many_losses_the_task_worth_most_keeps_its_minimum():
    one = standing("one", ["a0", "a1"], weight=1.0, min_nodes=2)
    two = standing("two", ["b0", "b1"], weight=3.0, min_nodes=2)
    planner = Planner(situation(one, two, fault_rate=1e-7))
    plan = planner.plan(planner.loss(["b0"]))
    assert {name: task.nodes for name, task in plan.tasks.items()} == {"one": 0, "two": 3}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.sampled_from([1e-7, 1e-2, 1.0]),
)
def test_the_shares_are_the_best_of_all_by_unicrons_reward(weights, held, fault_rate):
    tasks = []
    for k, weight in enumerate(weights):
        names = [f"{k}-{n}" for n in range(held[k])]
        tasks.append(standing(f"t{k}", names, weight=weight, min_nodes=1))
    now = situation(*tasks, idle=["x"], fault_rate=fault_rate)
    capacity = now.capacity - 1
    lost = {"t0": 1}
    rewards = Rewards(now, tasks, capacity)

    def reward(counts):
        total = 0.0
        for task, count in zip(tasks, counts, strict=True):
            flops = task.curve.flops
            had = len(task.nodes)
            total += task.work.weight * flops[count] / (fault_rate * capacity)
            if count != had or task.work.name in lost:
                pause = now.transition_seconds + task.curve.state_bytes[count] / BUSY.inter_bandwidth
                total -= task.work.weight * flops[had] * pause
        return total

    def every(left, number):
        if number == 0:
            yield ()
            return
        for first in range(1, left - number + 2):
            for rest in every(left - first, number - 1):
                yield (first, *rest)

    found = rewards.share_out(lost)
    best = max(map(reward, every(capacity, len(tasks))))
    assert reward(list(found.values())) == pytest.approx(best, rel=1e-8)


def test_a_donor_gives_nodes_whose_state_others_hold_too():
    # Two replicas: one of two stages on a0, a1; one flat on a2. All of a2's state is also on a0 and a1.
    work = small_work(hardware=BUSY, global_batch_size=48)
    layout = build(work, [(2, 2), (4,)], [20, 4], [NodeSlots(f"a{k}", 1) for k in range(3)])
    order = giving_order([NodeSlots(f"a{k}", 1) for k in range(3)], layout)
    assert order[0].name == "a2"
    pipeline = build(work, [(4,), (2, 2)], [4, 20], [NodeSlots(f"a{k}", 1) for k in range(3)])
    order = giving_order([NodeSlots(f"a{k}", 1) for k in range(3)], pipeline)
    assert [n.name for n in order[:2]] == ["a2", "a1"]


def test_given_nodes_go_to_the_heavier_task_fastest_first():
    one = standing("one", ["a0", "a1"])
    heavy = standing("heavy", ["b0"], weight=2.0)
    now = situation(one, heavy)
    now = replace(
        now, nodes=dict(now.nodes) | {"fast": NodeSlots("fast", 1, 1.0), "slow": NodeSlots("slow", 1, 2.0)}
    )
    dealt = deal(now, now.tasks, {"one": 3, "heavy": 2})
    assert [n.name for n in dealt["heavy"]] == ["b0", "fast"]
    assert [n.name for n in dealt["one"]] == ["a0", "a1", "slow"]


class TestTable:
    def now(self):
        one = standing("one", ["a0", "a1", "a2"], min_nodes=1)
        two = standing("two", ["b0", "b1"], weight=2.0, min_nodes=1)
        waiting = standing("waiting", [], min_nodes=1)
        return situation(one, two, waiting, idle=["spare"], active=5)

    def test_every_likely_event_is_there_and_equals_what_would_be_computed(self):
        table = Table(self.now(), domains=[{"a0", "a1"}, {"a2", "b0"}])
        events = [table.planner.loss([n]) for n in ("a0", "b1", "spare")]
        events += [table.planner.loss(["a0", "a1"]), table.planner.loss(["a2", "b0"])]
        events += [Event(joined=((1, 1.0),)), Event(finished=("one",)), Event(launched=("waiting",))]
        for event in events:
            assert table.fetch(event) == Planner(self.now()).plan(event)
        assert table.misses == 0

    def test_nodes_of_one_task_share_one_plan(self):
        table = Table(self.now())
        assert table.fetch(table.planner.loss(["a0"])) is table.fetch(table.planner.loss(["a2"]))

    def test_a_miss_is_computed_counted_and_kept(self):
        table = Table(self.now())
        event = table.planner.loss(["a0", "b0"])
        assert table.fetch(event) == Planner(self.now()).plan(event)
        assert table.misses == 1
        table.fetch(event)
        assert table.misses == 1

    def test_an_event_after_which_nothing_can_go_on_says_so(self):
        table = Table(situation(standing("one", ["a0", "a1"], min_nodes=2)))
        with pytest.raises(PlanError, match="no task can go on with 1 nodes"):
            table.fetch(table.planner.loss(["a0"]))

    def test_an_unknown_node_is_refused(self):
        table = Table(self.now())
        with pytest.raises(PlanError, match="no node 'zz'"):
            table.planner.loss(["zz"])


def test_a_long_curve_knows_pipelines_of_different_depth():
    # 39 nodes: equal pipelines alone would be five percent slower.
    work = small_work(
        num_layers=96,
        hidden_size=12288,
        num_attention_heads=96,
        seq_length=2048,
        vocab_size=51200,
        global_batch_size=3072,
        micro_batch_size=1,
        tensor=8,
        parameter_bytes=2,
        optimizer_bytes=12,
        activation_bytes=2,
        recompute="selective",
        hardware=hardware("a100-80gb"),
    )
    best = search(work, nodes(39, slots=8)).candidate.seconds
    assert throughput(work, 64, 8).seconds[39] <= best * 1.035

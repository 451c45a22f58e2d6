"""Nodes of different speed: the slow ones get what suits them, or nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.planner.brute import all_layouts
from tests.planner.works import MACHINE, nodes, small_work
from unicron_hpc.errors import PlanError
from unicron_hpc.planner import legal
from unicron_hpc.planner.search import search
from unicron_hpc.planner.work import NodeSlots, TaskWork


def drawn_work(draw: random.Random) -> TaskWork:
    machine = replace(
        MACHINE,
        flops=draw.choice([1e10, 1e11, 1e12]),
        memory_bytes=draw.choice([4e6, 6e6, 8e6, 1e9]),
        memory_bandwidth=draw.choice([1e9, 1e11]),
        inter_bandwidth=draw.choice([1e7, 1e8, 1e10]),
        layer_seconds=draw.uniform(0, 1e-2),
        stage_seconds=draw.uniform(0, 1e-2),
    )
    return small_work(
        num_layers=draw.randint(1, 4),
        vocab_size=draw.choice([128, 1024, 8192]),
        global_batch_size=2 * draw.randint(1, 5),
        tied=draw.random() < 0.5,
        hardware=machine,
    )


def ratio(work: TaskWork, mine: Sequence[NodeSlots]) -> float | None:
    """Seconds of the plan over those of the fastest layout there is; None where none fits."""
    every = [prediction.iteration_seconds for _, prediction in all_layouts(work, mine)]
    if not every:
        with pytest.raises(PlanError):
            search(work, mine)
        return None
    choice = search(work, mine)
    legal.check(choice.layout, work)
    assert choice.prediction.memory_bytes <= choice.prediction.memory_limit
    assert choice.prediction.iteration_seconds <= choice.candidate.seconds * (1 + 1e-9)
    return choice.prediction.iteration_seconds / min(every)


# Among the cases: a short gradient sum by few parameters (94, 237, 289) and by few replicas (16, 366), and
# memory for one micro-batch in flight (78, 346).
@pytest.mark.parametrize("case", [16, 78, 94, 237, 289, 346, 366, *range(12)])
def test_one_slow_node_is_planned_for_as_well_as_by_trying_everything(case):
    draw = random.Random(case)
    work, count = drawn_work(draw), 4 if case in {78, 346} else draw.randint(2, 3)
    found = ratio(work, [NodeSlots("slow", 1, draw.choice([1.2, 1.5, 3.0])), *nodes(count - 1)])
    assert found is None or found == pytest.approx(1.0)


def test_several_speeds_are_planned_for_nearly_as_well_as_by_trying_everything():
    found = []
    for case in range(40):
        draw = random.Random(case)
        work, speeds = drawn_work(draw), [1.0, 1.3, 1.5, 3.0]
        mine = [NodeSlots(f"c{k}", 1, draw.choice(speeds)) for k in range(draw.randint(2, 4))]
        found.append(ratio(work, mine))
    known = [r for r in found if r is not None]
    assert sum(r > 1 + 1e-9 for r in known) <= 0.1 * len(known)
    assert max(known) < 1.3


@pytest.mark.parametrize("case", [0, 8, 12, 24])
def test_nodes_that_are_far_too_slow_change_nothing(case):
    work = replace(drawn_work(random.Random(case)), num_layers=6, global_batch_size=20)
    alone = search(work, nodes(10))
    choice = search(work, [*nodes(10), NodeSlots("slow", 1, 50.0), NodeSlots("slower", 1, 60.0)])
    assert choice.candidate.seconds == pytest.approx(alone.candidate.seconds)
    assert {"slow", "slower"} <= set(choice.idle_nodes)


def test_a_slow_node_takes_the_stage_that_has_less_to_do():
    # The loss head over a large vocabulary is worth several layers; memory forces two stages.
    machine = replace(MACHINE, flops=1e9, memory_bytes=5.5e6)
    work = small_work(num_layers=2, vocab_size=1024, tied=False, hardware=machine)
    choice = search(work, [NodeSlots("slow", 1, 1.5), *nodes(1)])
    (replica,) = choice.layout.replicas
    assert [choice.layout.seats[stage.ranks[0]].node for stage in replica.stages] == ["slow", "c0"]


def test_a_node_that_only_holds_the_others_up_stays_without_a_seat():
    work = small_work(hardware=replace(MACHINE, flops=1e9), global_batch_size=24)
    choice = search(work, [*nodes(3), NodeSlots("slow", 1, 50.0)])
    assert choice.idle_nodes == ("slow",)


def test_all_groups_of_a_slow_node_are_slow():
    machine = replace(MACHINE, flops=1e9)
    work = small_work(num_layers=8, global_batch_size=48, hardware=machine)
    choice = search(work, [NodeSlots("fast", 4), NodeSlots("slow", 4, 2.0)])
    load = dict.fromkeys(("fast", "slow"), 0)
    for replica in choice.layout.replicas:
        for stage in replica.stages:
            load[choice.layout.seats[stage.ranks[0]].node] += stage.num_layers * replica.micro_batches
    assert load["slow"] == pytest.approx(load["fast"] / 2, rel=0.25)

"""Shares at the start, on nodes of any speed: what `unicron plan` shows is what the job does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.works import MACHINE, nodes, small_work
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.cost import model_flops
from unicron_hpc.planner.outlook import at_start
from unicron_hpc.planner.search import search
from unicron_hpc.planner.standings import throughput_on
from unicron_hpc.planner.start import share_at_start, within_reach
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Computing counts, not sending: every further node is worth something.
BUSY = replace(MACHINE, flops=1e9)


def task(name: str, **changes: object) -> TaskWork:
    return small_work(**{"name": name, "hardware": BUSY, "global_batch_size": 24} | changes)


def with_slow(count: int, *factors: float) -> list[NodeSlots]:
    return [*nodes(count), *(NodeSlots(f"s{k}", 1, factor) for k, factor in enumerate(factors))]


def flops(work: TaskWork, some: Sequence[NodeSlots]) -> float:
    try:
        return model_flops(work) / search(work, some).candidate.seconds
    except PlanError:
        return 0.0


def test_slow_nodes_are_the_spares():
    given = share_at_start({"only": task("only")}, [NodeSlots("s0", 1, 1.5), *nodes(3)], 3)
    assert [node.name for node in given["only"]] == ["c0", "c1", "c2"]


def test_the_heavier_task_gets_the_fast_nodes():
    works = {w.name: w for w in (task("light", weight=0.5), task("heavy", weight=3.0))}
    given = share_at_start(works, with_slow(4, 2.0), 5)
    assert all(node.slowdown == 1 for node in given["heavy"])


def test_among_equal_nodes_the_preferred_ones_train():
    works = {w.name: w for w in (task("a"), task("b"))}
    given = share_at_start(works, nodes(12)[::-1], 4)
    assert {node.name for some in given.values() for node in some} == {"c11", "c10", "c9", "c8"}


@pytest.mark.parametrize("case", range(2))
def test_two_tasks_share_slow_and_fast_nodes_nearly_as_well_as_by_trying_everything(case):
    draw = random.Random(case)
    works = {
        name: task(
            name,
            weight=draw.choice([0.5, 1.0, 2.0]),
            global_batch_size=draw.choice([8, 16]),
            num_layers=draw.choice([2, 4]),
        )
        for name in ("a", "b")
    }
    mine = with_slow(draw.randint(2, 3), draw.choice([1.3, 2.0, 4.0]))
    given = share_at_start(works, mine, len(mine))
    achieved = sum(work.weight * flops(work, given[name]) for name, work in works.items())

    worth = {
        (name, some): work.weight * flops(work, some)
        for name, work in works.items()
        for count in range(1, len(mine))
        for some in itertools.combinations(mine, count)
    }
    best = max(
        value + worth["b", tuple(node for node in mine if node not in some)]
        for (name, some), value in worth.items()
        if name == "a"
    )
    assert achieved >= 0.92 * best


@pytest.mark.parametrize("slow", [(1.5,), (1.3, 4.0)])
def test_the_curve_on_few_nodes_is_what_the_search_finds(slow):
    work, mine = task("only"), with_slow(3, *slow)
    curve = throughput_on(work, mine)
    for count in range(1, len(mine) + 1):
        assert curve.seconds[count] == pytest.approx(search(work, mine[:count]).candidate.seconds)
        assert curve.flops[count] == pytest.approx(flops(work, mine[:count]))
    assert curve.flops[0] == 0


@pytest.mark.parametrize("slow", [(2.0,) * 20, (1.2, 4.0, 50.0)])
def test_the_curve_on_many_nodes_is_near_what_the_search_finds(slow):
    work, mine = task("only", num_layers=12, global_batch_size=100), with_slow(30, *slow)
    curve = throughput_on(work, mine)
    for count in (30, 31, len(mine)):
        best = search(work, mine[:count]).candidate.seconds
        assert curve.seconds[count] == pytest.approx(best, rel=0.08)
    assert np.isinf(curve.seconds[0])


def test_equally_slow_nodes_take_longer_by_their_factor():
    work = task("only", global_batch_size=80)
    slow = throughput_on(work, [replace(node, slowdown=2.0) for node in nodes(17)])
    assert slow.seconds[17] == pytest.approx(2 * throughput_on(work, nodes(17)).seconds[17], rel=0.05)


def test_a_depth_that_no_node_count_reaches_gives_way():
    assert within_reach(task("only", pipeline=3), nodes(2)).pipeline is None
    assert within_reach(task("only", pipeline=3), nodes(3)).pipeline == 3
    assert within_reach(task("only", pipeline=4, tensor=2), nodes(2, slots=4)).pipeline == 4
    assert within_reach(task("only", pipeline=4, tensor=2), nodes(2, slots=3)).pipeline is None


@settings(max_examples=5, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([None, 1, 2, 3])), min_size=1, max_size=3
    ),
    st.integers(2, 4),
)
@example([(3.0, 1), (0.01, 3)], 4)
def test_every_task_gets_what_its_first_pipeline_needs(asked, count):
    works = [task(f"t{k}", weight=w, pipeline=depth) for k, (w, depth) in enumerate(asked)]
    if sum(depth or 1 for _, depth in asked) > count:
        with pytest.raises(PlanError):
            at_start(works, nodes(count))
        assume(len(works) == 1)
        return
    plans = at_start(works, nodes(count))
    for work in works:
        assert len(plans[work.name].nodes) >= (work.pipeline or 1)

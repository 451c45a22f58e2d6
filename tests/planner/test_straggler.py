"""A slow node is taken out when the plan without it is better, and not before."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.brute import all_layouts
from tests.planner.works import MACHINE, nodes, small_work, works
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.cost import predict
from unicron_hpc.planner.search import search
from unicron_hpc.planner.straggler import WORTH, better_without
from unicron_hpc.planner.work import NodeSlots

#: Computing counts, not sending.
BUSY = replace(MACHINE, flops=1e9)


def slowed(count: int, factor: float) -> list[NodeSlots]:
    """`count` nodes, the last of them slow."""
    return [*nodes(count - 1), NodeSlots("slow", 1, factor)]


def test_a_somewhat_slow_node_without_a_spare_stays_with_less_to_do():
    found = better_without(small_work(hardware=BUSY, global_batch_size=48), slowed(4, 1.3), "slow")
    assert not found.better
    assert found.with_seconds < found.without_seconds


def test_a_hopelessly_slow_node_goes_even_without_a_spare():
    found = better_without(small_work(hardware=BUSY), slowed(4, 50.0), "slow")
    assert found.better
    assert found.without_seconds == pytest.approx(found.with_seconds)


def test_a_spare_takes_the_place_of_a_slow_node():
    work = small_work(hardware=BUSY, global_batch_size=48)
    found = better_without(work, slowed(4, 1.5), "slow", spares=[NodeSlots("spare", 1)])
    assert found.better
    assert found.without_seconds == pytest.approx(search(work, nodes(4)).candidate.seconds)


def test_a_gain_that_is_not_worth_a_spare_is_none():
    work = small_work(hardware=BUSY, global_batch_size=8, pipeline=None)
    found = better_without(work, slowed(4, 1 + WORTH / 2), "slow", spares=[NodeSlots("spare", 1)])
    assert found.without_seconds < found.with_seconds
    assert not found.better


def test_a_spare_as_slow_as_the_node_is_no_reason_to_take_it_out():
    work = small_work(hardware=BUSY, global_batch_size=48)
    assert not better_without(work, slowed(4, 1.5), "slow", spares=[NodeSlots("spare", 1, 1.5)]).better


def test_the_fastest_spare_is_the_one_that_counts():
    work = small_work(hardware=BUSY, global_batch_size=48)
    spares = [NodeSlots("lame", 1, 9.0), NodeSlots("fast", 1)]
    assert better_without(work, slowed(4, 1.5), "slow", spares=spares).better


def test_a_node_that_memory_or_min_nodes_cannot_do_without_stays():
    tight = small_work(hardware=replace(BUSY, memory_bytes=5e6))
    with pytest.raises(PlanError):
        search(tight, nodes(2))
    found = better_without(tight, slowed(3, 3.0), "slow")
    assert (found.without_seconds, found.better) == (math.inf, False)
    assert not better_without(small_work(hardware=BUSY, min_nodes=4), slowed(4, 50.0), "slow").better


def test_the_degree_and_size_that_run_are_the_ones_compared():
    work = small_work(hardware=BUSY, tensor=None, micro_batch_size=None, global_batch_size=48)
    running = search(replace(work, tensor=1, micro_batch_size=8), nodes(4)).layout
    found = better_without(work, slowed(4, 1.5), "slow", previous=running)
    assert found.with_seconds == pytest.approx(
        search(work, slowed(4, 1.5), previous=running).candidate.seconds
    )


def test_a_slow_node_that_stays_makes_sharing_anew_pay_where_the_running_layout_ignores_it():
    work = small_work(hardware=BUSY, global_batch_size=48)
    running = search(work, nodes(4)).layout
    mine = [*nodes(3), NodeSlots("c3", 1, 1.5)]
    found = better_without(work, mine, "c3", previous=running)
    assert not found.better
    assert found.share_anew
    assert found.now_seconds == pytest.approx(
        predict(running, work, {node.name: node.slowdown for node in mine}).iteration_seconds
    )
    shared = search(work, mine, previous=running).layout
    assert not better_without(work, mine, "c3", previous=shared).share_anew


def test_a_small_gain_is_no_reason_to_share_anew():
    work = small_work(hardware=BUSY, global_batch_size=400)
    mine = [*nodes(3), NodeSlots("c3", 1, 1.04)]
    found = better_without(work, mine, "c3", previous=search(work, nodes(4)).layout)
    assert found.now_seconds is not None
    assert found.with_seconds < found.now_seconds
    assert not found.share_anew


def test_a_node_of_another_task_is_refused():
    with pytest.raises(PlanError, match="no node 'c9'"):
        better_without(small_work(), nodes(2), "c9")


@settings(max_examples=25, deadline=None)
@given(works(layers=3, micro_batches=4), st.integers(2, 4), st.sampled_from([1.2, 2.0, 8.0]))
def test_the_best_plan_without_the_node_is_the_fastest_layout_there_is(work, count, factor):
    every = [found.iteration_seconds for _, found in all_layouts(work, nodes(count - 1))]
    assume(every)
    found = better_without(work, slowed(count, factor), "slow")
    assert found.without_seconds == pytest.approx(min(every), rel=1e-9)
    assert found.with_seconds <= found.without_seconds * (1 + 1e-9)

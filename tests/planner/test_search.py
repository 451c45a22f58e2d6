"""The search finds the fastest layout there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.brute import all_layouts
from tests.planner.works import nodes, small_work, works
from unicron_hpc.errors import PlanError
from unicron_hpc.planner import equal, legal
from unicron_hpc.planner.hardware import hardware
from unicron_hpc.planner.scope import bench, scope
from unicron_hpc.planner.search import best_layout, search
from unicron_hpc.planner.work import NodeSlots


@settings(max_examples=60, deadline=None)
@given(works(), st.integers(1, 5))
def test_no_layout_at_all_is_faster_than_the_one_found(work, count):
    every = [found.iteration_seconds for _, found in all_layouts(work, nodes(count))]
    if not every:
        with pytest.raises(PlanError):
            search(work, nodes(count))
        return
    choice = search(work, nodes(count))
    assert choice.prediction.iteration_seconds == pytest.approx(min(every), rel=1e-9)
    assert choice.candidate.seconds == pytest.approx(choice.prediction.iteration_seconds, rel=1e-9)
    assert choice.prediction.memory_bytes <= choice.prediction.memory_limit
    legal.check(choice.layout, work)


@settings(max_examples=40, deadline=None)
@given(works(), st.integers(1, 5))
def test_the_bounded_search_of_large_clusters_comes_within_two_percent(work, count):
    try:
        exact = search(work, nodes(count)).candidate.seconds
    except PlanError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal, "EXHAUSTIVE_GROUPS", 0)
        assert search(work, nodes(count)).candidate.seconds <= exact * 1.02


@settings(max_examples=30, deadline=None)
@given(works(), st.lists(st.sampled_from([1.0, 1.0, 1.5, 3.0]), min_size=2, max_size=5))
def test_slow_nodes_never_make_the_plan_worse_than_leaving_them_out(work, slowdown):
    mine = [NodeSlots(f"c{k}", 1, s) for k, s in enumerate(slowdown)]
    fast = [n for n in mine if n.slowdown == min(slowdown)]
    try:
        alone = search(work, fast).candidate.seconds
    except PlanError:
        return
    choice = search(work, mine)
    assert choice.candidate.seconds <= alone * (1 + 1e-9)
    assert choice.prediction.iteration_seconds <= choice.candidate.seconds * (1 + 1e-9)
    legal.check(choice.layout, work)


def test_a_slow_node_gets_fewer_micro_batches_or_layers():
    work = small_work(num_layers=4, global_batch_size=24)
    mine = [NodeSlots("a", 1), NodeSlots("b", 1), NodeSlots("slow", 1, 2.0)]
    layout = best_layout(work, mine)
    load = {
        layout.seats[stage.ranks[0]].node: stage.num_layers * replica.micro_batches
        for replica in layout.replicas
        for stage in replica.stages
    }
    assert load["slow"] < load["a"]
    assert load["slow"] < load["b"]


def test_three_nodes_where_two_held_the_model_split_the_layers_unevenly():
    # Memory takes two of the four layers a rank, so three nodes can only form one pipeline.
    machine = replace(small_work().hardware, memory_bytes=5.65e6)
    layout = best_layout(small_work(hardware=machine), nodes(3))
    assert [[s.num_layers for s in r.stages] for r in layout.replicas] == [[1, 2, 1]]


def test_replicas_of_different_depth_stand_side_by_side_where_that_is_fastest():
    # Six layers fit in two stages, not in one: five nodes are two pipelines of two and three stages.
    machine = replace(small_work().hardware, memory_bytes=9.8e6, layer_seconds=1e-2, stage_seconds=0.0)
    work = small_work(num_layers=6, hardware=machine, global_batch_size=40)
    choice = search(work, nodes(5))
    assert sorted(len(r.stages) for r in choice.layout.replicas) == [2, 3]
    assert choice.idle_nodes == ()
    deep = max(choice.layout.replicas, key=lambda r: len(r.stages))
    flat = min(choice.layout.replicas, key=lambda r: len(r.stages))
    assert deep.micro_batches > flat.micro_batches


def test_the_user_fixes_the_degrees_of_the_first_layout():
    layout = best_layout(small_work(pipeline=2), nodes(4))
    assert [len(r.stages) for r in layout.replicas] == [2, 2]
    assert [r.micro_batches for r in layout.replicas] == [2, 2]


def test_a_depth_that_leaves_a_node_idle_gives_way_to_a_faster_layout():
    busy = replace(small_work().hardware, flops=1e9)
    work = small_work(pipeline=2, global_batch_size=24, hardware=busy)
    choice = search(work, nodes(3))
    free = search(replace(work, pipeline=None), nodes(3))
    assert choice.idle_nodes == ()
    assert choice.candidate.seconds == pytest.approx(free.candidate.seconds)


def test_a_depth_that_leaves_a_node_idle_stays_where_nothing_is_faster():
    # One micro-batch, and every further stage would only cost.
    work = small_work(pipeline=1, global_batch_size=2)
    choice = search(work, nodes(2))
    assert [len(replica.stages) for replica in choice.layout.replicas] == [1]
    assert choice.idle_nodes == ("c1",)


def test_a_depth_that_all_nodes_find_a_seat_in_is_kept_although_another_is_faster():
    busy = replace(small_work().hardware, flops=1e9)
    work = small_work(pipeline=4, global_batch_size=24, hardware=busy)
    assert (
        search(replace(work, pipeline=None), nodes(4)).candidate.seconds
        < search(work, nodes(4)).candidate.seconds
    )
    assert [len(replica.stages) for replica in search(work, nodes(4)).layout.replicas] == [4]


def test_a_depth_gives_way_where_slow_nodes_would_hold_up_the_others():
    busy = replace(small_work().hardware, flops=1e9)
    work = small_work(pipeline=2, global_batch_size=24, hardware=busy)
    choice = search(work, [*nodes(3), NodeSlots("slow", 1, 20.0)])
    assert choice.idle_nodes == ("slow",)


def test_a_depth_that_does_not_fit_in_memory_is_refused_however_the_nodes_divide():
    machine = replace(small_work().hardware, memory_bytes=5.65e6)
    for count in (4, 5):
        with pytest.raises(PlanError, match="pipeline_model_parallel_size 2"):
            search(small_work(pipeline=2, hardware=machine), nodes(count))


def test_after_a_loss_the_depth_is_free_but_degree_and_size_stay():
    work = small_work(pipeline=2, tensor=None, micro_batch_size=None, num_attention_heads=4)
    first = best_layout(replace(work, tensor=2, micro_batch_size=2), nodes(2, slots=2))
    then = best_layout(work, nodes(1, slots=2), previous=first)
    assert (then.tensor, then.micro_batch_size) == (2, 2)
    assert then.replicas[0].stages[0].ranks == (0, 1)


def test_a_tensor_group_stays_inside_one_node():
    layout = best_layout(small_work(tensor=2), nodes(3, slots=3))
    for replica in layout.replicas:
        for stage in replica.stages:
            assert len({layout.seats[rank].node for rank in stage.ranks}) == 1
    legal.check(layout, small_work(tensor=2))


def test_2048_nodes_of_8_get_a_legal_layout_near_the_bound():
    machine = hardware("a100-80gb")
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
        hardware=machine,
    )
    choice = search(work, nodes(2048, slots=8))
    legal.check(choice.layout, work)
    part = scope(work, 8, 1, bench(nodes(2048, slots=8), 8))
    assert choice.candidate.seconds <= 1.25 * equal.bound(part, part.depths())


def test_few_micro_batches_in_flight_leave_room_for_more_layers():
    # Each of two pipelines has one micro-batch; with two in flight its first stage would not fit.
    machine = replace(
        small_work().hardware, flops=1e10, memory_bytes=6e6, memory_bandwidth=1e9, inter_bandwidth=1e8
    )
    work = small_work(vocab_size=1024, global_batch_size=4, tied=False, hardware=machine)
    every = [found.iteration_seconds for _, found in all_layouts(work, nodes(4))]
    choice = search(work, nodes(4))
    assert choice.prediction.iteration_seconds == pytest.approx(min(every), rel=1e-9)
    assert [r.micro_batches for r in choice.layout.replicas] == [1, 1]


def test_fewer_micro_batches_than_groups_of_unequal_nodes_leave_some_idle():
    mine = [NodeSlots("a", 1), NodeSlots("b", 1), NodeSlots("slow", 1, 1.5)]
    choice = search(small_work(global_batch_size=2), mine)
    assert sum(r.micro_batches for r in choice.layout.replicas) == 1
    assert "slow" in choice.idle_nodes

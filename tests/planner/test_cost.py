"""The cost model: its formulas against published figures, and its calibration against made-up machines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.brute import build
from tests.planner.works import MACHINE, nodes, small_work
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.calibrate import Measured, calibrate
from unicron_hpc.planner.cost import _replica_memory, model_flops, parameters, predict, ring, stage_costs
from unicron_hpc.planner.hardware import hardware, known
from unicron_hpc.planner.search import search
from unicron_hpc.planner.work import NodeSlots

GPT3 = small_work(
    num_layers=96,
    hidden_size=12288,
    num_attention_heads=96,
    seq_length=2048,
    vocab_size=51200,
    global_batch_size=1536,
    micro_batch_size=1,
    parameter_bytes=2,
    optimizer_bytes=12,
    activation_bytes=2,
)


def test_gpt3_has_175_billion_parameters():
    layer, first, _ = parameters(GPT3)
    assert 96 * layer + first == pytest.approx(174.6e9, rel=0.005)


def test_flops_equal_the_closed_formula_without_recomputation():
    # Narayanan et al. 2021, equation 3, has 96 B s l h^2 (1 + s / 6h + V / 16lh) with recomputation of all
    # layers, a fourth pass; without it three of four parts remain, and the head is never recomputed.
    batch, s, layers, h, vocab = 1536, 2048, 96, 12288, 51200
    expected = 72 * batch * s * layers * h * h * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert model_flops(GPT3) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("recompute", "factor"), [("none", 34 + 5 * 96 * 2048 / 12288), ("selective", 34), ("full", 2)]
)
def test_activations_per_layer_equal_the_closed_formula(recompute, factor):
    # Korthikanti et al. 2022, equations 1 and 6, bytes of a layer without tensor parallelism.
    costs = stage_costs(replace(GPT3, recompute=recompute), 1, 1, 8)
    assert costs.layer_activation == pytest.approx(2048 * 12288 * factor)


def test_tensor_slices_share_weights_but_not_all_activations():
    whole, sliced = stage_costs(GPT3, 1, 1, 8), stage_costs(GPT3, 8, 1, 8)
    assert sliced.layer_parameters == whole.layer_parameters / 8
    assert whole.layer_activation / 8 < sliced.layer_activation < whole.layer_activation


def test_a_ring_sends_everything_almost_twice():
    assert ring(1, 1e9, 1e9, 1.0) == 0
    assert ring(2, 1e9, 1e9, 0.0) == pytest.approx(1.0)
    assert ring(4, 1e9, 1e9, 0.1) == pytest.approx(1.5 + 0.6)


def test_a_pipeline_takes_fill_and_drain_and_its_slowest_stage():
    work = small_work()
    costs = stage_costs(work, 1, 2, 1)
    found = predict(build(work, [(1, 3)], [4], nodes(2)), work)
    first = costs.layer + costs.first + costs.stage
    last = 3 * costs.layer + costs.last + costs.stage
    expected = first + last + costs.link_inter + 3 * (max(first, last) + costs.link_inter)
    assert found.pipeline_seconds == pytest.approx(expected)


def test_stages_on_one_node_talk_faster_than_across_the_network():
    work = small_work()
    near = predict(build(work, [(2, 2)], [4], nodes(1, slots=2)), work)
    far = predict(build(work, [(2, 2)], [4], nodes(2)), work)
    assert near.pipeline_seconds < far.pipeline_seconds


def test_a_published_run_is_predicted_within_a_quarter():
    # Narayanan et al. 2021, table 1: 145.6e9 parameters, tensor 8, pipeline 8, 1536 A100s, batch 2304, 148
    # TFLOP/s a GPU by their count, which includes the recomputed forward pass.
    work = small_work(
        num_layers=80,
        hidden_size=12288,
        num_attention_heads=96,
        seq_length=2048,
        vocab_size=51200,
        global_batch_size=2304,
        micro_batch_size=1,
        tensor=8,
        pipeline=8,
        recompute="full",
        parameter_bytes=2,
        optimizer_bytes=12,
        activation_bytes=2,
        hardware=hardware("a100-80gb"),
    )
    found = search(work, nodes(192, slots=8)).prediction
    executed = found.flops / 1536 * 4 / 3
    assert executed == pytest.approx(148e12, rel=0.25)


@pytest.mark.parametrize("name", known())
def test_every_shipped_description_is_complete_and_names_its_source(name):
    machine = hardware(name)
    assert machine.name == name
    assert machine.source
    assert 0 < machine.efficiency <= 1
    assert min(machine.flops, machine.memory_bytes, machine.intra_bandwidth, machine.inter_bandwidth) > 0


LAYOUTS = [
    build(small_work(), pipes, share, nodes(8))
    for pipes, share in [
        ([(4,)], [4]),
        ([(2, 2)], [4]),
        ([(1, 3)], [4]),
        ([(1, 1, 1, 1)], [4]),
        ([(4,), (4,)], [2, 2]),
        ([(4,), (4,)], [3, 1]),
        ([(2, 2), (4,)], [3, 1]),
        ([(2, 2), (2, 2)], [2, 2]),
        ([(4,)] * 4, [1] * 4),
        ([(1, 2, 1), (3, 1)], [2, 2]),
    ]
]


@settings(max_examples=15, deadline=None)
@given(st.tuples(*[st.floats(0.2, 5.0)] * 4))
def test_calibration_finds_a_machine_that_differs_in_several_figures(factors):
    real = replace(
        MACHINE,
        efficiency=MACHINE.efficiency / factors[0],
        layer_seconds=MACHINE.layer_seconds * factors[1],
        stage_seconds=MACHINE.stage_seconds * factors[2],
        iteration_seconds=MACHINE.iteration_seconds * factors[3],
    )
    truth = small_work(hardware=real)
    measured = [Measured(layout, predict(layout, truth).iteration_seconds) for layout in LAYOUTS]
    found = calibrate(small_work(), measured)
    assert found.after <= 0.02
    assert found.after <= found.before + 1e-9
    other = build(small_work(), [(3, 1), (4,)], [2, 2], nodes(3))
    corrected = predict(other, small_work(hardware=found.hardware)).iteration_seconds
    assert corrected == pytest.approx(predict(other, truth).iteration_seconds, rel=0.05)


def test_one_measured_layout_scales_everything():
    truth = replace(MACHINE, efficiency=0.05, layer_seconds=1e-3, stage_seconds=1e-3, iteration_seconds=1e-2)
    measured = Measured(LAYOUTS[1], predict(LAYOUTS[1], small_work(hardware=truth)).iteration_seconds)
    found = calibrate(small_work(), [measured])
    assert found.before > 0.8
    assert found.after < 0.05


def test_calibration_without_measurements_is_refused():
    with pytest.raises(PlanError, match="positive seconds"):
        calibrate(small_work(), [])
    with pytest.raises(PlanError, match="positive seconds"):
        calibrate(small_work(), [Measured(LAYOUTS[0], 0.0)])


def test_ranks_that_share_a_host_cannot_beat_its_cores():
    shared = small_work(hardware=replace(MACHINE, host_cores=2.0, layer_seconds=1e-2))
    alone = small_work(hardware=replace(MACHINE, layer_seconds=1e-2))
    four = build(alone, [(4,)] * 4, [1] * 4, nodes(4))
    assert predict(four, shared).pipeline_seconds >= 2 * predict(four, alone).pipeline_seconds
    two = build(alone, [(4,)] * 2, [2] * 2, nodes(2))
    assert predict(two, shared).pipeline_seconds == pytest.approx(predict(two, alone).pipeline_seconds)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_search_and_prediction_agree_on_a_shared_host(count):
    work = small_work(hardware=replace(MACHINE, host_cores=2.0, layer_seconds=1e-2), global_batch_size=20)
    choice = search(work, [NodeSlots(f"n{k}", 1) for k in range(count)])
    assert choice.candidate.seconds == pytest.approx(choice.prediction.iteration_seconds, rel=1e-9)


def test_a_distributed_optimizer_shares_its_state_over_the_replicas():
    work = small_work(distributed_optimizer=True)
    one, four = build(work, [(4,)], [4], nodes(1)), build(work, [(4,)] * 4, [1] * 4, nodes(4))
    whole, shared = predict(one, work).memory_bytes, predict(four, work).memory_bytes
    layer, first, _ = parameters(work)
    assert whole - shared == pytest.approx((4 * layer + first) * work.optimizer_bytes * 3 / 4)
    assert predict(four, replace(work, distributed_optimizer=False)).memory_bytes == whole


def test_a_layout_that_only_a_distributed_optimizer_fits_in_memory_is_found():
    tight = replace(MACHINE, memory_bytes=7.2e6)
    flat = small_work(hardware=tight, distributed_optimizer=True)
    found = search(flat, nodes(4))
    assert [len(r.stages) for r in found.layout.replicas] == [1, 1, 1, 1]
    assert found.prediction.memory_bytes <= found.prediction.memory_limit
    without = search(replace(flat, distributed_optimizer=False), nodes(4))
    assert max(len(r.stages) for r in without.layout.replicas) > 1


def test_activations_count_for_as_many_micro_batches_as_a_replica_has():
    work = small_work()
    deep = [build(work, [(2, 2), (4,)], [share, 4 - share], nodes(3)) for share in (1, 2, 3)]
    flat = predict(build(work, [(4,)], [4], nodes(1)), work).memory_bytes
    costs = stage_costs(work, 1, 2, 1)
    one, two, three = (_replica_memory(layout.replicas[0], work, costs, 2)[0] for layout in deep)
    assert one < two == three
    assert one < flat

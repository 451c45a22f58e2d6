"""Layouts that Megatron would refuse inside the ranks are refused before any rank starts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.brute import build
from tests.planner.works import nodes, small_work
from unicron_hpc.errors import PlanError
from unicron_hpc.planner import legal
from unicron_hpc.planner.layout import Seat, Stage

work = small_work()
good = build(work, [(2, 2), (1, 3)], [3, 1], nodes(4))


def changed(replica: int, **changes):
    replicas = list(good.replicas)
    replicas[replica] = replace(replicas[replica], **changes)
    return replace(good, replicas=tuple(replicas))


def test_a_legal_layout_passes():
    legal.check(good, work)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (changed(0, stages=(Stage(0, 1, (0,)), Stage(2, 2, (1,)))), "ends at layer 2 of 4"),
        (changed(0, stages=(Stage(0, 1, (0,)), Stage(1, 3, (1,)))), "expected at least one from 2"),
        (changed(0, stages=(Stage(0, 3, (0,)), Stage(4, 3, (1,)))), "holds layers 4 to 3"),
        (changed(0, stages=(Stage(0, 1, (0,)), Stage(2, 3, (0,)))), "not each of the 4 exactly once"),
        (changed(1, micro_batches=2), "5 micro-batches of 2 are not the global batch of 8"),
        (changed(1, first_micro_batch=2), "expected at least one from 3"),
        (changed(1, micro_batches=0), "at least one from 3"),
        (replace(good, seats=(*good.seats[:3], good.seats[0])), "two ranks share a seat"),
        (replace(good, tensor=2), "has 1 ranks, the tensor degree is 2"),
        (replace(good, tensor=3), "tensor degree 3 does not divide num_attention_heads 4"),
        (replace(good, num_layers=5), "the model has 4"),
    ],
)
def test_a_broken_rule_is_named(layout, message):
    with pytest.raises(PlanError, match=message):
        legal.check(layout, work)


def test_a_tensor_group_over_two_nodes_is_named():
    layout = build(small_work(tensor=2), [(4,)], [4], nodes(1, slots=2), tensor=2)
    layout = layout.with_seats((Seat("c0", 0), Seat("c1", 0)))
    with pytest.raises(PlanError, match="spreads its tensor group over several nodes"):
        legal.check(layout, small_work(tensor=2))

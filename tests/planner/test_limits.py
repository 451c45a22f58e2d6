"""Impossible demands name the constraint that binds and the nearest demand that would fit."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from tests.planner.works import MACHINE, nodes, small_work
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.search import search

TIGHT = replace(MACHINE, memory_bytes=5.65e6)


@pytest.mark.parametrize(
    ("work", "on", "message", "hint"),
    [
        (small_work(), [], "no node is left", "1 node"),
        (small_work(micro_batch_size=3), nodes(2), "8 is not a multiple of micro_batch_size 3", "2 divides"),
        (small_work(tensor=3), nodes(2, slots=4), "3 does not divide num_attention_heads 4", "2 does"),
        (small_work(tensor=2), nodes(2), "2 does not fit in a node of 1 rank", "2 ranks per node"),
        (small_work(pipeline=5), nodes(8), "5 exceeds num_layers 4", "at most 4"),
        (small_work(pipeline=4), nodes(3), "needs 4 ranks, there are 3", "or 4 nodes"),
        (
            small_work(hardware=TIGHT),
            nodes(2),
            "memory: no layout of 4 layers",
            "3 nodes would do",
        ),
        (small_work(hardware=TIGHT, pipeline=2), nodes(4), "pipeline_model_parallel_size 2", "size 3 with"),
    ],
)
def test_the_binding_constraint_is_named(work, on, message, hint):
    with pytest.raises(PlanError, match=re.escape(message)) as caught:
        search(work, on)
    assert hint in caught.value.hint
    assert "task 'train'" in caught.value.where or not on


def test_the_number_of_nodes_that_is_said_to_do_does():
    with pytest.raises(PlanError) as caught:
        search(small_work(hardware=TIGHT), nodes(1))
    count = int(caught.value.hint.split()[0])
    search(small_work(hardware=TIGHT), nodes(count))
    with pytest.raises(PlanError):
        search(small_work(hardware=TIGHT), nodes(count - 1))


def test_the_memory_that_is_said_to_do_does():
    tiny = replace(MACHINE, memory_bytes=1e6)
    with pytest.raises(PlanError) as caught:
        search(small_work(hardware=tiny), nodes(4))
    enough = float(caught.value.hint.split()[0]) * 1e9
    search(small_work(hardware=replace(tiny, memory_bytes=enough * 1.005)), nodes(4))

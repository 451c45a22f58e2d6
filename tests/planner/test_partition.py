"""The partition of layers is the best of all partitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.brute import compositions
from unicron_hpc.planner.partition import slowest_stage, split_layers

seconds = st.sampled_from([0.0, 0.3, 1.0, 2.5, 7.0])


def times(counts, layer, extra, slowdown):
    return [f * (n * layer + e) for n, e, f in zip(counts, extra, slowdown, strict=True)]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(1, 5), st.sampled_from([0.5, 1.0, 3.0]), st.data())
def test_slowest_stage_is_as_fast_as_in_the_best_of_all_partitions(layers, stages, layer, data):
    extra = data.draw(st.lists(seconds, min_size=stages, max_size=stages))
    slowdown = data.draw(st.lists(st.sampled_from([1.0, 1.3, 2.0]), min_size=stages, max_size=stages))
    most = data.draw(st.lists(st.integers(0, layers), min_size=stages, max_size=stages))
    every = [
        max(times(counts, layer, extra, slowdown))
        for counts in compositions(layers, stages)
        if all(n <= m for n, m in zip(counts, most, strict=True))
    ]
    found = split_layers(layers, layer, extra, slowdown=slowdown, most=most)
    if not every:
        assert found is None
        return
    assert found is not None
    assert sum(found) == layers
    assert min(found) >= 1
    assert all(n <= m for n, m in zip(found, most, strict=True))
    assert max(times(found, layer, extra, slowdown)) == pytest.approx(min(every))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.sampled_from([0.5, 1.0]), seconds, seconds, st.data())
def test_all_depths_at_once_agree_with_one_depth_at_a_time(layers, layer, first, last, data):
    most = np.zeros((layers, layers), dtype=np.int64)
    for p in range(1, layers + 1):
        most[p - 1, :p] = data.draw(st.lists(st.integers(0, layers), min_size=p, max_size=p))
    found = slowest_stage(layers, layer, first, last, most)
    for p in range(1, layers + 1):
        extra = [0.0] * p
        extra[0] += first
        extra[-1] += last
        caps = most[p - 1, :p].tolist()
        counts = split_layers(layers, layer, extra, slowdown=[1.0] * p, most=caps)
        if counts is None:
            assert np.isinf(found[p - 1])
        else:
            assert found[p - 1] == pytest.approx(max(times(counts, layer, extra, [1.0] * p)))


def test_a_heavy_loss_head_leaves_the_last_stage_fewer_layers():
    assert split_layers(8, 1.0, [0.0, 2.0], slowdown=[1, 1], most=[8, 8]) == (5, 3)


def test_a_slow_node_gets_fewer_layers():
    found = split_layers(9, 1.0, [0.0] * 3, slowdown=[1.0, 2.0, 1.0], most=[9] * 3)
    assert found in {(4, 2, 3), (3, 2, 4)}


def test_a_full_memory_moves_layers_to_later_stages():
    assert split_layers(6, 1.0, [0.0] * 2, slowdown=[1, 1], most=[2, 6]) == (2, 4)

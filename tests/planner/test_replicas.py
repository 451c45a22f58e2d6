"""Sets of replicas: exact against trying them all."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.planner.brute import compositions
from unicron_hpc.planner.replicas import Options, fastest_mix, knapsack, limited_knapsack, lower_bound, shares

times = st.sampled_from([0.5, 1.0, 1.7, 3.0, 4.2, 9.0, float("inf")])


def finish(kinds, split, through, each):
    return max(through[p - 1] + (m - 1) * each[p - 1] for p, m in zip(kinds, split, strict=True))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(times, min_size=1, max_size=4),
    st.lists(st.sampled_from([0.3, 0.5, 1.1, 2.0]), min_size=4, max_size=4),
    st.integers(1, 6),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, 4)),
)
def test_no_set_of_replicas_finishes_earlier(through, each, groups, micro_batches, replicas):
    through, each = np.array(through), np.array(each[: len(through)])
    each = np.where(np.isfinite(through), each, np.inf)
    depths = [p for p in range(1, len(through) + 1) if np.isfinite(through[p - 1])]
    every = [
        finish(kinds, split, through, each)
        for number in range(1, min(replicas or groups, micro_batches) + 1)
        for kinds in combinations_with_replacement(depths, number)
        if sum(kinds) <= groups
        for split in compositions(micro_batches, number)
    ]
    options = Options(through[None], each[None], np.array([[micro_batches]]))
    found = fastest_mix(options, groups, micro_batches, replicas=replicas)
    if not every:
        assert found is None
        return
    assert found is not None
    seconds, mix, _ = found
    assert seconds == pytest.approx(min(every))
    assert sum(p * n for p, n in mix) <= groups
    assert replicas is None or sum(n for _, n in mix) <= replicas
    if replicas is None:
        assert lower_bound(through, each, groups, micro_batches) <= seconds * (1 + 1e-9)
    split = shares(
        [through[p - 1] for p, _ in mix], [each[p - 1] for p, _ in mix], [n for _, n in mix], micro_batches
    )
    flat = [(p, m) for (p, _), some in zip(mix, split, strict=True) for m in some]
    assert sum(m for _, m in flat) == micro_batches
    assert min(m for _, m in flat) >= 1
    assert finish([p for p, _ in flat], [m for _, m in flat], through, each) == pytest.approx(min(every))


def test_a_faster_replica_gets_more_micro_batches():
    assert shares([2.0, 1.0], [2.0, 1.0], [1, 1], 9) == [(3,), (6,)]


def test_more_replicas_than_micro_batches_are_refused():
    with pytest.raises(ValueError, match="2 micro-batches for 3 replicas"):
        shares([1.0], [1.0], [3], 2)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 8), st.integers(1, 4))
@example([0, 1, 2], 3, 3)
def test_the_knapsack_is_filled_best(values, groups, replicas):
    def best(left, items):
        if items == 0:
            return 0
        return max([0] + [v + best(left - p, items - 1) for p, v in enumerate(values, start=1) if p <= left])

    table = np.array(values)
    assert knapsack(table, groups)[-1] == best(groups, groups)
    assert limited_knapsack(table, groups, replicas)[-1, -1] == best(groups, replicas)

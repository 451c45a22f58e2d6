"""The search finds the fastest layout there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.brute import all_layouts
from tests.planner.works import nodes, works
from unicron_hpc.errors import PlanError
from unicron_hpc.planner import legal
from unicron_hpc.planner.search import search


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

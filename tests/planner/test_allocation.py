"""The allocation over tasks is the best there is, and of the best the one that moves least."""

from __future__ import annotations

import itertools

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.allocation import allocate

NEVER = float("-inf")


def total(rewards, given):
    return float(rewards[np.arange(len(given)), given].sum())


@st.composite
def cases(draw, tasks=4, nodes=7):
    """Rewards in whole numbers, so that ties are ties; some choices forbidden, many negative."""
    number, capacity = draw(st.integers(1, tasks)), draw(st.integers(0, nodes))
    value = st.one_of(st.integers(-20, 20).map(float), st.just(NEVER))
    rows = draw(
        st.lists(st.lists(value, min_size=nodes + 1, max_size=nodes + 1), min_size=number, max_size=number)
    )
    current = draw(st.lists(st.integers(0, nodes), min_size=number, max_size=number))
    moves = np.abs(np.arange(nodes + 1)[None, :] - np.array(current)[:, None])
    return np.array(rows), capacity, moves


@settings(max_examples=120, deadline=None)
@given(cases())
def test_reward_and_moves_equal_those_of_the_best_of_all_allocations(case):
    rewards, capacity, moves = case
    every = [
        (total(rewards, given), -int(moves[np.arange(len(given)), given].sum()))
        for given in itertools.product(range(capacity + 1), repeat=len(rewards))
        if sum(given) <= capacity
    ]
    best = max(every, default=(NEVER, 0))
    if best[0] == NEVER:
        with pytest.raises(PlanError):
            allocate(rewards, capacity, moves)
        return
    found = allocate(rewards, capacity, moves)
    assert found.sum() <= capacity
    assert (total(rewards, found), -int(moves[np.arange(len(found)), found].sum())) == best


def by_integer_programme(rewards, capacity):
    """The same by HiGHS: one binary per (task, nodes), one choice per task, nodes within the capacity."""
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("mip_rel_gap", 0.0)
    count = rewards.shape[1]
    allowed = np.isfinite(rewards)
    choice = model.addBinaries(rewards.size)
    for t in range(len(rewards)):
        model.addConstr(sum(choice[t * count + k] for k in range(count) if allowed[t, k]) == 1)
    for at in np.flatnonzero(~allowed.ravel()):
        model.addConstr(choice[int(at)] == 0)
    size = len(rewards)
    model.addConstr(sum(choice[t * count + k] * k for t in range(size) for k in range(count)) <= capacity)
    model.maximize(
        sum(choice[t * count + k] * rewards[t, k] for t in range(size) for k in range(count) if allowed[t, k])
    )
    return model.getInfo().objective_function_value


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["concave", "steps", "noise", "alike"])
def test_reward_equals_that_of_an_integer_programme(seed, shape):
    rng = np.random.default_rng(seed)
    tasks, capacity = 6, 40
    nodes = np.arange(capacity + 1)
    curves = {
        "concave": lambda: rng.uniform(1, 3) * nodes / (1 + nodes / rng.uniform(2, 60)),
        "steps": lambda: rng.uniform(1, 3) * (nodes // rng.integers(1, 6) * 3.0),
        "noise": lambda: rng.uniform(-5, 20, capacity + 1),
        "alike": lambda: nodes * 2.0,
    }
    rewards = np.array([curves[shape]() for _ in range(tasks)])
    current = rng.multinomial(capacity, [1 / tasks] * tasks)
    moves = np.abs(nodes[None, :] - current[:, None])
    rewards = rewards - np.where(moves > 0, 3.0, 0.0)
    for t in range(tasks):
        rewards[t, : rng.integers(0, 4)] = NEVER
    found = allocate(rewards, capacity, moves)
    assert found.sum() <= capacity
    assert total(rewards, found) == pytest.approx(by_integer_programme(rewards, capacity), rel=1e-7)


def test_minimum_sizes_beyond_the_nodes_are_named():
    rewards = np.full((2, 6), NEVER)
    rewards[:, 4:] = 1.0
    with pytest.raises(PlanError, match="the tasks need 8 nodes, there are 5"):
        allocate(rewards, 5, np.zeros((2, 6), dtype=np.int64))

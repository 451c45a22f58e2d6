"""What the benches count, and what they do not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from common.contestants import Turns
from common.figures import Spread, first_after, healed, worst_difference
from common.processes import descendants
from common.watching import BenchError

Record = dict[str, Any]


def commit(iteration: int, time: float, epoch: int, seconds: float = 0.1) -> Record:
    return {"iteration": iteration, "time": time, "epoch": epoch, "iteration_seconds": seconds, "loss": 1.0}


def event(kind: str, time: float, epoch: int, **fields: object) -> Record:
    return {"type": kind, "time": time, "epoch": epoch, **fields}


STEPS = {
    "gather": 1.9,
    "planning": 0.01,
    "start": 0.02,
    "rebuild": 0.3,
    "commit": 0.0,
    "groups": 0.1,
    "chunk": 0.03,
    "state": 0.04,
    "warm": 0.05,
}
#: A node dies at 100.0; its peers notice at once, the coordinator after two seconds.
NODE_LOSS = [
    event("transition_started", 100.1, 2),
    event("agent_lost", 102.0, 2),
    event("plan_chosen", 102.1, 2, reason="spare"),
    event("transition_finished", 102.5, 2, steps=STEPS, state_sources={"disk": 0, "peer": 7}),
    event("plan_chosen", 300.0, 3, reason="same seats"),
]


class TestAFault:
    def test_is_over_with_the_first_iteration_that_a_later_epoch_computed(self) -> None:
        metrics = [
            commit(7, 100.01, 1),  # was on its way when the fault came
            commit(8, 102.4, 2, seconds=0.0),  # complete before the fault, applied by the survivors
            commit(9, 102.6, 2),
        ]
        assert first_after(metrics, 1, 100.0) == metrics[2]

    def test_counts_waiting_for_its_detection_apart_from_the_transition(self) -> None:
        found = healed(NODE_LOSS, [commit(9, 102.7, 2)], 1, 100.0, "n2 killed")
        assert found.seconds["detection"] == pytest.approx(2.0)
        assert found.seconds["transition"] == pytest.approx(0.5)
        assert found.seconds["to_commit"] == pytest.approx(2.7)
        assert found.seconds["rebuild"] == pytest.approx(0.15)

    def test_takes_nothing_of_the_next_one(self) -> None:
        assert healed(NODE_LOSS, [commit(9, 102.7, 2)], 1, 100.0, "n2 killed").reason == "spare"

    def test_takes_nothing_of_the_one_before(self) -> None:
        before = [
            event("fault_detected", 99.5, 1),
            event("transition_started", 99.5, 1),
            event("plan_chosen", 99.5, 1, reason="same seats"),
            event("transition_finished", 99.6, 1, steps=STEPS, state_sources={"disk": 3}),
        ]
        found = healed([*before, *NODE_LOSS], [commit(9, 102.7, 2)], 1, 100.0, "n2 killed")
        assert found == healed(NODE_LOSS, [commit(9, 102.7, 2)], 1, 100.0, "n2 killed")

    def test_adds_up_what_every_attempt_read_from_disk(self) -> None:
        first = event("transition_finished", 102.2, 2, steps=STEPS, state_sources={"disk": 5})
        found = healed([*NODE_LOSS[:3], first, NODE_LOSS[3]], [commit(9, 102.7, 2)], 1, 100.0, "n2 killed")
        assert found.disk_bytes == 5

    @pytest.mark.parametrize("missing", range(4))
    def test_that_the_journal_does_not_show_is_an_error(self, missing: int) -> None:
        told = [one for place, one in enumerate(NODE_LOSS[:4]) if place != missing]
        with pytest.raises(BenchError, match="n2 killed"):
            healed(told, [commit(9, 102.7, 2)], 1, 100.0, "n2 killed")

    def test_after_which_nothing_is_committed_is_an_error(self) -> None:
        with pytest.raises(BenchError, match="no iteration"):
            healed(NODE_LOSS, [commit(9, 99.0, 1)], 1, 100.0, "n2 killed")


class TestATurn:
    def test_counts_only_periods_that_lie_wholly_in_it_and_are_warm(self) -> None:
        turns = Turns()
        records = [commit(n, 10.0 + n, 1) for n in range(1, 7)]  # 11, 12, ... 16
        turns.take(records, begun=11.5, ended=15.5, cpu_seconds=2.0)
        assert turns.periods == [[1.0, 1.0]]  # 13 to 14 and 14 to 15; 12 was the cold one

    def test_counts_every_iteration_that_its_processor_time_paid_for(self) -> None:
        turns = Turns()
        turns.take([commit(1, 10.0, 1), commit(2, 12.0, 1)], begun=11.0, ended=13.0, cpu_seconds=2.0)
        assert (turns.iterations, turns.cpu_seconds) == (1, 2.0)


class TestFigures:
    def test_losses_are_compared_where_both_have_the_iteration(self) -> None:
        assert worst_difference({1: 2.0, 2: 4.0, 3: 1.0}, {1: 2.0, 2: 5.0}) == (pytest.approx(0.2), 2)

    def test_a_spread_is_median_and_range(self) -> None:
        assert Spread.of([5.0, 1.0, 2.0]) == Spread(2.0, 1.0, 5.0)

    def test_a_family_begins_with_its_ancestor_and_has_this_process_below_its_parent(self) -> None:
        family = descendants(os.getppid())
        assert family[0] == os.getppid()
        assert os.getpid() in family

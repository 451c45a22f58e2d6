"""As long as one process holds each part of the state, nothing is lost, whatever else fails when."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.supervisor.events import within
from tests.supervisor.holding_ranks import HoldingJob, Process
from unicron_hpc.detect.hangs import RANK_HANG, RANK_STOPPED
from unicron_hpc.detect.severity import Finding, Method
from unicron_hpc.supervisor import transition
from unicron_hpc.supervisor.rank_messages import Cut

TWO_BY_TWO = "train.pipeline_model_parallel_size=2"
#: A silent process is given up after 2.5 times this.
QUICK = ("recovery.node_timeout=0.02", "recovery.heartbeat_interval=0.01")


@settings(max_examples=4, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.integers(0, 2**32))
def test_state_of_which_a_copy_lives_is_never_lost(depth: int, seed: int) -> None:
    """Processes and nodes die between any two steps of any rank; messages are under way at any time."""

    async def work(folder: Path) -> None:
        chance = random.Random(seed)
        pipelines = f"train.pipeline_model_parallel_size={depth}"
        async with HoldingJob(folder, pipelines, spares=chance.randint(0, 3)) as job:
            for _ in range(chance.randint(1, 4)):
                for _ in range(chance.choice((0, 1, 3, 10, 40, 100))):
                    await job.go(chance)
                await strike(job, chance)
            furthest = job.furthest()
            await job.settle()
            assert job.events("state_lost") == []
            assert job.refused == []
            assert job.furthest() > furthest

    with tempfile.TemporaryDirectory() as folder:
        within(work(Path(folder)), 60.0)


async def strike(job: HoldingJob, chance: random.Random) -> None:
    """Kill a process, break a node or suspect a hang, unless that took the last copy of something along.

    In a transition a suspicion, which may be wrong, must not take one along as far as anybody knows.
    """
    victim = chance.choice(job.living())
    unheard = any(process.outbox for process in job.processes.values() if not process.alive)
    known = job.control.in_transition and not unheard
    if chance.random() < 0.3 and (known or job.whole_without(victim)):
        job.notices(victim.address.seat.node, RANK_HANG, victim.address, method=Method.STATISTICS)
        await job.breathe()
        return
    node = victim.address.seat.node
    there = [process for process in job.processes.values() if process.address.seat.node == node]
    if node != "n1" and len(job.broken) < 3 and chance.random() < 0.3:
        if job.whole_without(*there):
            job.break_node(node)
    elif job.whole_without(victim):
        victim.die()
    await job.breathe()


def on(job: HoldingJob, node: str) -> Process:
    return next(process for process in job.living() if process.address.seat.node == node)


async def gathering(job: HoldingJob, *silent: Process) -> None:
    """Go on until all but the silent have told what they hold, and no order has been given."""
    await job.until_quiet(*silent)
    assert job.control.in_transition


class TestASilentProcess:
    def test_that_may_have_the_last_copy_is_asked_again_and_waited_for_longer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transition, "LONGEST_STEP", 0.01)
        monkeypatch.setattr(transition, "ASK_AGAIN", 0.08)  # longer than others are waited for
        monkeypatch.setattr(transition, "LAST_COPY", 1000.0)

        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO, *QUICK) as job:
                silent = on(job, "n4")
                on(job, "n2").die()
                await gathering(job, silent)
                await job.until(lambda: sum(isinstance(order, Cut) for order in silent.inbox) > 1)
                await job.settle()
                assert silent.alive
                assert job.events("state_lost") == []

        within(work())

    def test_is_given_up_in_the_end_even_if_that_loses_state(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transition, "LONGEST_STEP", 0.01)

        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO, *QUICK) as job:
                silent = on(job, "n4")
                on(job, "n2").die()
                await gathering(job, silent)
                await job.until(lambda: silent not in job.living())
                await job.settle()
                assert [event["units"] for event in job.events("state_lost")] != []

        within(work())

    def test_whose_state_others_have_is_not_waited_for_longer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transition, "LONGEST_STEP", 0.01)
        monkeypatch.setattr(transition, "LAST_COPY", 1000.0)

        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO, *QUICK) as job:
                silent = on(job, "n4")
                on(job, "n1").die()
                await gathering(job, silent)
                await job.until(lambda: silent not in job.living())
                await job.settle()
                assert job.events("state_lost") == []

        within(work())

    def test_is_not_blamed_for_the_time_in_which_the_coordinator_did_not_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transition, "LONGEST_STEP", 0.01)

        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO, *QUICK) as job:
                slow = on(job, "n4")
                on(job, "n1").die()
                await gathering(job, slow)
                time.sleep(0.1)  # nothing at all runs
                await job.breathe()
                await job.settle()
                assert slow.alive

        within(work())

    def test_has_as_long_as_iterations_took_in_the_epoch_before(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path) as job:
                transitions, progress = job.control._transitions, job.control._progress
                progress.shift(-20.0)
                progress.committed(time.monotonic())
                mean = progress.mean
                assert mean is not None
                for _ in range(2):  # the second time before the new epoch has committed anything
                    transitions.begin()
                    assert transitions._current is not None
                    assert transitions._current._hold_timeout == pytest.approx(3 * mean)
                    await job.settle(0)

        within(work())


class TestATransitionThatTakesTooLong:
    def test_costs_nobody_who_answers_at_first_and_no_last_copy_the_second_time(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO) as job:
                before = {process.address for process in job.living()}
                on(job, "n2").die()
                await job.until_ordered()
                survivors = set(job.living())
                assert len(survivors) == len(before)
                job.let_time_out()
                await job.until_ordered()
                assert survivors <= set(job.living())
                job.let_time_out()
                await job.until_ordered()
                assert job.whole_without()
                assert {p.address.seat.node for p in survivors - set(job.living())} == {"n1", "n2"}
                await job.settle()
                assert job.events("state_lost") == []

        within(work())

    def test_gives_up_all_that_are_not_ready_the_third_time(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO) as job:
                on(job, "n2").die()
                for _ in range(3):
                    await job.until_ordered()
                    waiting = set(job.living())
                    job.let_time_out()
                await job.breathe()
                assert not waiting & set(job.living())
                await job.settle()

        within(work())

    def test_is_tried_again_without_who_never_started(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO) as job:
                on(job, "n2").die()
                await job.until_quiet(starting=False)
                mute = on(job, "n2")
                job.let_time_out()
                await job.breathe()
                assert mute not in job.living()
                await job.settle()
                assert job.events("state_lost") == []

        within(work())


@pytest.mark.parametrize("finding", [RANK_HANG, RANK_STOPPED])
class TestWhoIsNamedInATransition:
    def test_goes_at_once_where_others_have_its_state(self, tmp_path: Path, finding: Finding) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO) as job:
                on(job, "n2").die()
                await job.until_ordered()
                stuck = on(job, "n1")  # n3 has the same layers
                job.notices("n1", finding, stuck.address, method=Method.STATISTICS)
                await job.breathe()
                assert stuck not in job.living()
                await job.settle()
                assert job.events("state_lost") == []
                assert ("n1", "new process") in job.rules

        within(work())

    def test_goes_at_once_if_it_is_new_and_holds_nothing(self, tmp_path: Path, finding: Finding) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO) as job:
                on(job, "n2").die()
                await job.until_ordered()
                new = on(job, "n2")
                job.notices("n2", finding, new.address, method=Method.STATISTICS)
                await job.breathe()
                assert new not in job.living()
                await job.settle()
                assert job.events("state_lost") == []

        within(work())

    def test_is_asked_again_first_if_it_may_have_the_last_copy(
        self, tmp_path: Path, finding: Finding
    ) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO) as job:
                on(job, "n2").die()
                await job.until_ordered()
                last = on(job, "n4")
                epoch = job.control._state.epoch
                job.notices("n4", finding, last.address, method=Method.STATISTICS)
                await job.breathe()
                assert last in job.living()
                assert job.control._state.epoch > epoch
                assert any(isinstance(order, Cut) for order in last.inbox)
                await job.settle()
                assert last.alive
                assert job.events("state_lost") == []

        within(work())

    def test_is_not_given_up_while_it_may_still_tell_of_the_last_copy(
        self, tmp_path: Path, finding: Finding
    ) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO) as job:
                on(job, "n2").die()
                last = on(job, "n4")
                await gathering(job, last)
                job.notices("n4", finding, last.address, method=Method.STATISTICS)
                await job.breathe()
                assert last in job.living()
                await job.settle()
                assert job.events("state_lost") == []

        within(work())

    def test_does_not_keep_a_gathering_waiting_that_can_do_without_it(
        self, tmp_path: Path, finding: Finding
    ) -> None:
        async def work() -> None:
            async with HoldingJob(tmp_path, TWO_BY_TWO) as job:
                on(job, "n2").die()
                silent = on(job, "n1")
                await gathering(job, silent)
                job.notices("n1", finding, silent.address, method=Method.STATISTICS)
                await job.breathe()
                assert silent not in job.living()
                await job.settle()
                assert job.events("state_lost") == []

        within(work())

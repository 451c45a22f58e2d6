"""Who hangs, who waits, and who only could not run: judged from looks at one rank."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.hangs import (
    ANSWER,
    ENOUGH,
    LONGEST_STEP,
    PATIENCE,
    SLACK,
    HangWatch,
    Sample,
    Stuck,
    Suspicion,
)
from unicron_hpc.detect.phases import (
    COMPUTE,
    OWN,
    TRANSITION,
    TRANSITION_OWN,
    TRANSITION_WAITING,
    WAITING,
    WorkPhase,
)
from unicron_hpc.detect.transition_work import TransitionWork

FACTOR, FLOOR, INTERVAL = 3.0, 5.0, 0.1
few = settings(max_examples=40, deadline=None)
paces = st.floats(0.02, 5.0)
own = st.sampled_from(sorted(OWN))
computing = own.filter(lambda phase: phase is not WorkPhase.DATA)
waiting = st.sampled_from(sorted(WAITING))
waiting_anywhere = st.sampled_from(sorted(WAITING | TRANSITION_WAITING))
placing = st.sampled_from(sorted(TRANSITION_OWN))
anything = st.sampled_from(sorted(set(WorkPhase) - TRANSITION - {WorkPhase.IDLE}))


@dataclass
class Rank:
    """A rank and whoever looks at it."""

    watch: HangWatch = field(default_factory=lambda: HangWatch(FACTOR, FLOOR))
    now: float = 1000.0
    cpu: float = 0.0
    delay: float = 0.0
    count: int = 0
    epoch: int = 1

    def trained(self, pace: float, iterations: int = 2 * ENOUGH) -> Rank:
        """It has finished some iterations in this epoch, each of its own phases a fifth of them."""
        for _ in range(iterations):
            self.watch.finished(self.epoch, pace, dict.fromkeys(COMPUTE, pace / 5))
        return self

    def enters(self, phase: WorkPhase) -> None:
        self.count += 1
        self._phase, self._since = phase, self.now
        self._look("")

    def stays(
        self,
        seconds: float,
        state: str = "S",
        *,
        cpu: float = 0.0,
        delay: float = 0.0,
        interval: float = INTERVAL,
        others_delay: float = 0.0,
    ) -> Suspicion | None:
        """Nothing moves for that long; its thread has these shares of the time. The first suspicion."""
        end = self.now + seconds
        while self.now < end:
            self.now += interval
            self.cpu += cpu * interval
            self.delay += delay * interval
            found = self._look(state, others_delay * interval)
            if found:
                return found
        return None

    def _look(self, state: str, others_delay: float = 0.0) -> Suspicion | None:
        return self.watch.look(
            Sample(
                time=self.now,
                count=self.count,
                phase=self._phase,
                since=self._since,
                state=state,
                cpu=self.cpu,
                delay=self.delay,
                others_delay=others_delay,
            )
        )


def busy(state: str) -> float:
    return 1.0 if state == "R" else 0.0


@few
@given(paces, st.lists(st.tuples(anything, st.floats(0.01, 0.99), st.sampled_from("SRD")), max_size=20))
def test_no_noise_below_the_limit_is_an_alarm(
    pace: float, visits: list[tuple[WorkPhase, float, str]]
) -> None:
    rank = Rank().trained(pace)
    for phase, share, state in visits:
        rank.enters(phase)
        assert rank.stays(share * FACTOR * pace, state, cpu=busy(state)) is None


@few
@given(paces, own, st.sampled_from("SRT"))
def test_a_rank_stuck_in_its_own_work_is_named_within_the_bound(
    pace: float, phase: WorkPhase, state: str
) -> None:
    rank = Rank().trained(pace)
    rank.enters(phase)
    since = rank.now
    if phase is WorkPhase.DATA and state != "T":  # it may be opening a new part of the data
        assert rank.stays(0.9 * PATIENCE * FLOOR, state) is None
        return
    found = rank.stays(100 * pace + 10, state, cpu=busy(state))
    assert found is not None
    assert FACTOR * pace + SLACK <= rank.now - since + 1e-6
    assert rank.now - since <= FACTOR * pace + 0.5
    assert found.stuck is {"S": Stuck.SLEEPING, "R": Stuck.LOOPING, "T": Stuck.STOPPED}[state]
    assert found.phase is phase


@few
@given(paces, anything)
def test_a_stopped_rank_is_named_wherever_it_was(pace: float, phase: WorkPhase) -> None:
    rank = Rank().trained(pace)
    rank.enters(phase)
    found = rank.stays(FACTOR * pace + 0.5, "T")
    assert found is not None
    assert (found.stuck, found.sure) == (Stuck.STOPPED, True)


@few
@given(paces, waiting_anywhere, st.sampled_from("SRD"))
def test_who_waits_for_others_is_never_named(pace: float, phase: WorkPhase, state: str) -> None:
    rank = Rank().trained(pace)
    rank.enters(phase)
    assert rank.stays(9 * pace + 3, state, cpu=busy(state)) is None
    assert not rank.watch.at_work


@few
@given(st.floats(0.02, 0.5), computing, st.floats(0.1, 0.9))
def test_time_without_a_processor_does_not_count(pace: float, phase: WorkPhase, share: float) -> None:
    """Ready, but waiting for a processor: no progress is no fault, however long; what it did run counts."""
    rank = Rank().trained(pace)
    rank.enters(phase)
    limit = FACTOR * pace + SLACK
    assert rank.stays(0.99 * limit / share - LONGEST_STEP, "R", cpu=share) is None
    assert rank.stays(limit / share, "R", cpu=share) is not None
    rank.enters(phase)
    assert rank.stays(100.0, "R", cpu=0.0) is None


@few
@given(st.floats(0.02, 0.5), computing, st.floats(0.1, 0.9))
def test_waits_for_a_processor_between_sleeps_do_not_count(
    pace: float, phase: WorkPhase, share: float
) -> None:
    rank = Rank().trained(pace)
    rank.enters(phase)
    limit = FACTOR * pace + SLACK
    assert rank.stays(0.99 * limit / (1 - share) - LONGEST_STEP, "S", delay=share) is None
    assert rank.stays(limit / (1 - share), "S", delay=share) is not None


@few
@given(paces, own, st.floats(1.0, 1e4))
def test_who_did_not_look_for_a_while_counts_a_moment_only(
    pace: float, phase: WorkPhase, away: float
) -> None:
    rank = Rank().trained(pace)
    rank.enters(phase)
    for _ in range(int((FACTOR * pace + SLACK) / LONGEST_STEP) - 1):
        assert rank.stays(away, "T", interval=away) is None
    for _ in itertools.repeat(None, 3):
        rank.stays(away, "T", interval=away)
    assert rank.watch.look(Sample(rank.now, rank.count, phase, 0.0, "T")) is None  # told already


def test_a_mark_that_is_seen_late_has_lasted_for_a_while() -> None:
    rank = Rank().trained(0.1)
    rank.enters(WorkPhase.FORWARD)
    rank.count += 1
    rank._since, rank.now = rank.now, rank.now + 0.2
    rank._look("")
    assert rank.stays(0.5 - 0.2, "S") is not None


def test_a_rank_that_compiles_takes_as_long_as_that_takes_and_the_next_phase_does_not() -> None:
    rank = Rank().trained(0.1)
    rank.enters(WorkPhase.BACKWARD)
    assert rank.stays(1.0, "R", cpu=1.0) is not None
    rank.watch.compiles()
    assert rank.stays(1000.0, "R", cpu=1.0) is None
    assert rank.watch.at_work
    assert rank.stays(1.0, "T") is not None
    rank.enters(WorkPhase.BACKWARD)
    assert rank.stays(1.0, "R", cpu=1.0) is not None


def test_a_checkpoint_takes_as_long_as_the_disk_takes() -> None:
    rank = Rank().trained(0.1)
    rank.enters(WorkPhase.CHECKPOINT)
    for state in "SDR":
        assert rank.stays(1000, state, cpu=busy(state)) is None
    assert rank.watch.at_work


@pytest.mark.parametrize("phase", sorted(OWN))
def test_a_slow_disk_is_no_hang_but_one_that_never_answers_is(phase: WorkPhase) -> None:
    rank = Rank().trained(0.1)
    rank.enters(phase)
    assert rank.stays(PATIENCE * FLOOR - 1, "D") is None
    found = rank.stays(2, "D")
    assert found is not None
    assert found.stuck is Stuck.BLOCKED


@pytest.mark.parametrize("phase", [WorkPhase.IDLE, WorkPhase.LOAD, *sorted(TRANSITION_WAITING)])
def test_waits_and_disks_in_a_transition_are_judged_by_others_unless_stopped(phase: WorkPhase) -> None:
    rank = Rank().trained(0.1)
    rank.enters(phase)
    for state in "SDR":
        assert rank.stays(100, state, cpu=busy(state)) is None
    found = rank.stays(1.0, "T")
    assert found is not None
    assert found.stuck is Stuck.STOPPED


class TestAStepOfATransition:
    @few
    @given(st.floats(0.01, 60.0), placing, st.sampled_from("SR"))
    def test_may_take_six_times_what_the_whole_of_it_took_others(
        self, seconds: float, phase: WorkPhase, state: str
    ) -> None:
        rank = Rank().trained(0.1)
        rank.watch.transition_work = seconds
        rank.enters(phase)
        limit = max(FLOOR, 2 * FACTOR * seconds)
        assert rank.stays(limit - 0.5, state, cpu=busy(state)) is None
        found = rank.stays(1.0, state, cpu=busy(state))
        assert found is not None
        assert (found.phase, found.sure) == (phase, False)

    @few
    @given(placing, st.sampled_from("SRD"), st.floats(0.0, 100.0))
    def test_has_half_the_time_of_a_transition_where_nothing_is_known(
        self, phase: WorkPhase, state: str, half: float
    ) -> None:
        rank = Rank(HangWatch(FACTOR, FLOOR, transition=half))
        rank.enters(phase)
        limit = max(PATIENCE * FLOOR, half)
        assert rank.stays(limit - 0.5, state, cpu=busy(state)) is None
        assert rank.stays(1.0, state, cpu=busy(state)) is not None

    @few
    @given(placing, st.floats(0.05, 0.5), st.floats(0.0, 1.0))
    def test_is_not_blamed_for_a_processor_that_others_have(
        self, phase: WorkPhase, share: float, ready: float
    ) -> None:
        rank = Rank().trained(0.1)
        rank.watch.transition_work = 0.1
        rank.enters(phase)
        assert rank.stays(0.9 * FLOOR / share, "R", cpu=share) is None
        rank.enters(phase)
        assert rank.stays(0.9 * FLOOR, "S", delay=ready) is None

    @few
    @given(st.lists(st.tuples(st.sampled_from(sorted(TRANSITION)), st.floats(0.1, 0.9)), max_size=20))
    def test_begins_anew_with_every_mark(self, steps: list[tuple[WorkPhase, float]]) -> None:
        rank = Rank().trained(0.1)
        rank.watch.transition_work = 0.1
        for phase, share in steps:
            rank.enters(phase)
            assert rank.stays(share * FLOOR, "R", cpu=1.0) is None

    def test_that_waits_for_a_disk_has_as_long_as_one_of_which_nothing_is_known(self) -> None:
        rank = Rank().trained(0.1)
        rank.watch.transition_work = 0.1
        rank.enters(WorkPhase.STATE)
        assert rank.stays(PATIENCE * FLOOR - 1, "D") is None
        assert rank.stays(2.0, "D") is not None

    def test_by_which_an_interpreter_is_held_is_found_out_by_asking_those_who_wait(self) -> None:
        rank = Rank().trained(0.1)
        rank.watch.transition_work = 0.1
        rank.enters(WorkPhase.GROUPS)
        assert rank.stays(FLOOR) is None
        assert rank.watch.question() is not None
        found = rank.stays(FLOOR)
        assert found is not None
        assert found.stuck is Stuck.HELD


def test_a_place_is_work_for_each_of_its_layers() -> None:
    work = TransitionWork()
    assert work.longest(4) is None
    work.took(2.0, 4)
    work.took(0.5, 2)
    assert work.longest(8) == 4.0


def test_who_is_stopped_before_anything_is_known_of_its_pace_is_stuck_all_the_same() -> None:
    rank = Rank()
    rank.enters(WorkPhase.GROUPS)
    assert rank.stays(FLOOR - 1, "T") is None
    assert rank.stays(2, "T") is not None


@pytest.mark.parametrize("state", ["t", "Z", "X", ""])
def test_a_debugger_or_death_is_no_hang(state: str) -> None:
    rank = Rank().trained(0.1)
    rank.enters(WorkPhase.FORWARD)
    assert rank.stays(100, state) is None


def test_the_first_iterations_of_a_training_have_no_measure() -> None:
    rank = Rank()
    rank.watch.finished(1, 0.1, {})
    rank.trained(0.1, ENOUGH - 1)
    rank.enters(WorkPhase.FORWARD)
    assert rank.stays(PATIENCE * FLOOR - 1) is None
    assert rank.stays(2) is not None


@few
@given(paces)
def test_after_a_transition_iterations_are_given_more_time_but_the_pace_is_known(pace: float) -> None:
    rank = Rank().trained(pace)
    rank.epoch = 2
    rank.trained(50 * pace, 1)  # the first of an epoch is no measure
    rank.enters(WorkPhase.FORWARD)
    longer = max(FLOOR, 2 * FACTOR * pace)
    assert rank.stays(longer - 2 * INTERVAL) is None
    assert rank.stays(1.0) is not None
    rank.trained(pace)
    assert abs((rank.watch.limit(WorkPhase.FORWARD, Stuck.SLEEPING) or 0) - FACTOR * pace - SLACK) < 1e-9


def test_a_hang_is_told_once_and_the_next_one_again() -> None:
    rank = Rank().trained(0.1)
    for _ in range(2):
        rank.enters(WorkPhase.FORWARD)
        assert rank.stays(2.0) is not None
        assert rank.stays(2.0) is None


def test_a_rank_whose_stack_waits_for_a_peer_is_a_victim_until_it_moves() -> None:
    rank = Rank().trained(0.1)
    rank.enters(WorkPhase.FORWARD)
    found = rank.stays(2.0)
    assert found is not None
    assert not found.sure
    assert rank.watch.at_work
    rank.watch.waits_for_a_peer()
    assert not rank.watch.at_work
    assert rank.stays(100.0) is None
    stopped = rank.stays(1.0, "T")
    assert stopped is not None
    assert stopped.stuck is Stuck.STOPPED
    rank.enters(WorkPhase.FORWARD)
    assert rank.watch.at_work


# ---------------------------------------------------------------- the interpreter's lock


def asked(rank: Rank, seconds: float = 10.0) -> int:
    """It waits until it is asked whether its interpreter runs."""
    end = rank.now + seconds
    while rank.now < end:
        number = rank.watch.question()
        if number is not None:
            return number
        assert rank.stays(INTERVAL) is None
    raise AssertionError("not asked")


@few
@given(paces, waiting)
def test_a_waiting_rank_that_does_not_answer_holds_its_own_lock(pace: float, phase: WorkPhase) -> None:
    rank = Rank().trained(pace)
    rank.enters(phase)
    since = rank.now
    asked(rank, FACTOR * pace + SLACK)
    assert rank.watch.asking
    assert rank.watch.question() is None
    found = rank.stays(FACTOR * pace + 1)
    assert found is not None
    assert (found.stuck, found.sure) == (Stuck.HELD, True)
    assert rank.now - since <= FACTOR * pace + 0.5 + 1e-6


@few
@given(paces, waiting)
def test_one_that_answers_is_a_victim_and_is_asked_again_later(pace: float, phase: WorkPhase) -> None:
    rank = Rank().trained(pace)
    rank.enters(phase)
    for _ in range(3):
        rank.watch.answered(asked(rank, 2 * FACTOR * pace + 1))
        assert not rank.watch.asking
    asked(rank, 2 * FACTOR * pace + 1)
    rank.watch.answered(rank.count - 1)  # of another wait
    assert rank.stays(FACTOR * pace + 1) is not None


def test_an_answer_may_wait_for_a_processor_too() -> None:
    rank = Rank().trained(0.1)
    rank.enters(WorkPhase.ALL_REDUCE)
    asked(rank)
    assert rank.stays(0.99 * ANSWER / 0.1 - INTERVAL, "S", others_delay=0.9) is None
    assert rank.stays(ANSWER) is not None


def test_ranks_at_work_are_not_asked() -> None:
    rank = Rank().trained(0.1)
    rank.enters(WorkPhase.FORWARD)
    rank.stays(0.45)
    assert rank.watch.question() is None


# ---------------------------------------------------------------- statistics


def test_a_ranks_share_of_the_work_has_no_waiting_in_it_and_nothing_that_all_do_alike() -> None:
    rank = Rank().trained(1.0, 1)
    phases = {WorkPhase.FORWARD: 0.2, WorkPhase.BACKWARD: 0.3, WorkPhase.EXCHANGE: 0.3, WorkPhase.COMMIT: 0.1}
    phases[WorkPhase.OPTIMIZER] = 0.1
    for _ in range(5):
        rank.watch.finished(1, 1.0, phases)
    assert rank.watch.compute() == (0.5, 5)
    rank.watch.finished(2, 1.0, phases)
    assert rank.watch.compute() == (0.0, 0)


def test_the_phase_that_became_slower_is_named() -> None:
    rank = Rank().trained(1.0, 1)
    for _ in range(100):
        rank.watch.finished(1, 6.0, {WorkPhase.FORWARD: 2.0, WorkPhase.BACKWARD: 3.0})
    assert rank.watch.slower(1.1) == {}
    for _ in range(24):
        rank.watch.finished(1, 9.0, {WorkPhase.FORWARD: 2.0, WorkPhase.BACKWARD: 6.0})
    assert rank.watch.slower(1.1) == {WorkPhase.BACKWARD: 2.0}
    assert rank.watch.slower(1.1) == {}

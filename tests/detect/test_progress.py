"""An iteration that takes far longer than its like."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.progress import WINDOW, Progress

FACTOR, FLOOR = 3.0, 5.0


def running(*durations: float, begun: float = 0.0) -> tuple[Progress, float]:
    """A task that has committed iterations of these durations; and the time of the last one."""
    progress, now = Progress(FACTOR, FLOOR), begun
    progress.begin(now)
    for seconds in durations:
        now += seconds
        progress.committed(now)
    return progress, now


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 1000), st.lists(st.floats(1.0, 1.9), min_size=1, max_size=60), st.floats(0, 1e6))
def test_a_pace_that_varies_by_less_than_the_factor_never_raises_an_alarm(
    pace: float, factors: list[float], begun: float
) -> None:
    progress, now = running(pace, begun=begun)
    for factor in factors:
        assert progress.late(now + pace * factor) is None
        now += pace * factor
        progress.committed(now)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 100), max_size=40), st.floats(0.1, 100))
def test_an_alarm_means_longer_than_floor_and_factor_and_tells_how_long(
    durations: list[float], more: float
) -> None:
    progress, now = running(*durations)
    recent = durations[-WINDOW:]
    limit = max(FLOOR, FACTOR * sum(recent) / len(recent)) if recent else 6 * FLOOR
    late = progress.late(now + limit + more)
    assert late is not None
    assert abs(late - (limit + more)) < 1e-6 * (1 + now)
    assert progress.late(now + limit * 0.999) is None


def test_only_the_last_iterations_make_the_mean() -> None:
    progress, _ = running(*[100.0] * WINDOW, *[1.0] * WINDOW)
    assert progress.mean == 1.0


def test_short_iterations_are_given_the_floor() -> None:
    progress, now = running(*[0.01] * 10)
    assert progress.late(now + FLOOR) is None
    assert progress.late(now + FLOOR + 0.1) is not None


def test_the_first_iteration_of_an_epoch_is_given_more_time_whatever_went_before() -> None:
    progress, now = running(*[0.01] * 10)
    progress.begin(now)
    assert progress.mean is None
    assert progress.late(now + 6 * FLOOR) is None
    assert progress.late(now + 6 * FLOOR + 1) is not None


def test_nothing_is_late_where_nothing_is_expected() -> None:
    progress = Progress(FACTOR, FLOOR)
    assert progress.late(1e9) is None
    progress, now = running(1.0, 1.0)
    progress.pause()
    assert progress.late(now + 1e9) is None


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1e4), st.floats(0, 4.9))
def test_time_during_which_we_did_not_run_ourselves_is_nobodys_lateness(pause: float, waited: float) -> None:
    progress, now = running(*[0.01] * 5)
    progress.shift(pause)
    assert progress.late(now + pause + waited) is None
    progress.pause()
    progress.shift(pause)
    assert progress.late(now + 1e9) is None

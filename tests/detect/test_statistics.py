"""How long something usually takes, and whether that changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.statistics import (
    BLOCK_COUNT,
    BLOCK_SECONDS,
    FEWEST,
    MOST,
    RECENT,
    WINDOW,
    Series,
    Trend,
)

few = settings(max_examples=40, deadline=None)


def series(*durations: float) -> Series:
    some = Series()
    for seconds in durations:
        some.add(seconds)
    return some


def trend(blocks: Sequence[float], some: Trend | None = None) -> Trend:
    """Blocks of equal durations, each just long enough."""
    some = some or Trend()
    for seconds in blocks:
        for _ in range(BLOCK_COUNT):
            some.add(seconds, BLOCK_SECONDS / BLOCK_COUNT)
    return some


@few
@given(st.floats(0.001, 100), st.lists(st.floats(1e3, 1e6), max_size=WINDOW // 2 - 1))
def test_outliers_do_not_move_the_usual_duration(pace: float, outliers: list[float]) -> None:
    assert series(*[pace] * (WINDOW - len(outliers)), *outliers).usual() == pace


@few
@given(st.floats(0.01, 10), st.floats(100, 1000), st.floats(0, 0.001))
def test_the_level_shows_what_is_slow_now_and_then_but_no_single_outlier(
    pace: float, high: float, low: float
) -> None:
    assert Series(16).level() is None
    assert abs((series(*[pace] * 14, high * pace, low * pace).level() or 0) - pace) < 1e-9 * pace
    often = series(*[pace] * 10, *[4 * pace] * 6)
    assert often.usual() == pace
    assert (often.level() or 0) > 1.5 * pace


def test_only_the_last_durations_count_and_none_from_before_a_change() -> None:
    some = series(*[9.0] * WINDOW, *[1.0] * WINDOW)
    assert some.usual() == 1.0
    short = Series(3)
    for seconds in (1.0, 1.0, 1.0, 7.0, 7.0):
        short.add(seconds)
    assert short.usual() == 7.0
    some.clear()
    assert (some.usual(), len(some)) == (None, 0)


@few
@given(st.floats(0.01, 10), st.floats(1.2, 10), st.integers(FEWEST, MOST))
def test_a_lasting_change_is_told_once(pace: float, times: float, before: int) -> None:
    some = trend([pace] * before + [pace * times] * (RECENT - 1))
    assert some.slower(1.1) is None
    told = trend([pace * times], some).slower(1.1)
    assert told is not None
    assert abs(told - times) < 1e-6 * times
    assert trend([pace * times], some).slower(1.1) is None


def test_it_is_told_again_after_it_was_over() -> None:
    some = trend([1.0] * MOST + [2.0] * RECENT)
    assert some.slower(1.1) == 2.0
    assert trend([1.0] * RECENT, some).slower(1.1) is None
    assert trend([1.0] * MOST + [2.0] * RECENT, some).slower(1.1) == 2.0


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, RECENT - 1))
def test_a_load_that_passes_is_no_change(seed: int, length: int) -> None:
    # A load of one block less than a change, beside a block that is the highest by chance, would be one by
    # the rule: so the highest stands first.
    noise = random.Random(seed)
    calm = [1.2, *(noise.uniform(0.8, 1.2) for _ in range(MOST - 1))]
    some = trend(calm)
    for blocks in ([5.0] * length, [noise.choice(calm) for _ in range(RECENT)]):
        for seconds in blocks:
            assert trend([seconds], some).slower(1.1) is None


def test_a_change_below_the_factor_and_too_few_durations_tell_nothing() -> None:
    assert trend([1.0] * MOST + [1.09] * RECENT).slower(1.1) is None
    assert trend([1.0] * (FEWEST - 1) + [9.0] * RECENT).slower(1.1) is None
    assert trend([0.0] * MOST + [1.0] * RECENT).slower(1.1) is None
    some = trend([1.0] * MOST)
    some.clear()
    assert trend([9.0] * RECENT, some).slower(1.1) is None


def test_a_block_lasts_some_seconds_however_many_durations_that_are() -> None:
    some = Trend()
    for seconds in (1.0, 2.0):
        for _ in range((FEWEST if seconds == 1.0 else RECENT) * 64):
            some.add(seconds, BLOCK_SECONDS / 64)
    assert some.slower(1.1) == 2.0

"""What counts as the measured speed of a layout."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from tests.planner.works import nodes, small_work
from tests.supervisor.examples import few
from unicron_hpc.planner.layout import Seat
from unicron_hpc.planner.search import best_layout
from unicron_hpc.supervisor.pace import LEAST, MOST, WARM_UP, Pace

DEEP = best_layout(small_work(pipeline=2), nodes(2))
FLAT = best_layout(small_work(pipeline=1), nodes(2))


def run(pace: Pace, *seconds: float, layout: object = DEEP) -> None:
    for duration in seconds:
        pace.committed(layout, duration)  # type: ignore[arg-type]


def test_the_first_iterations_of_a_layout_do_not_count() -> None:
    pace = Pace()
    run(pace, *[100.0] * WARM_UP, *[1.0] * LEAST)
    (measured,) = pace.measured()
    assert (measured.layout, measured.seconds) == (DEEP, 1.0)


def test_a_layout_that_has_hardly_run_is_not_measured_yet() -> None:
    pace = Pace()
    run(pace, *[1.0] * (WARM_UP + LEAST - 1))
    assert list(pace.measured()) == []
    run(pace, 1.0)
    assert len(pace.measured()) == 1


@few
@given(st.lists(st.floats(0.001, 10), min_size=LEAST, max_size=MOST + 20))
def test_what_counts_is_the_median_of_the_latest(seconds: list[float]) -> None:
    pace = Pace()
    run(pace, *[1.0] * WARM_UP, *seconds)
    (measured,) = pace.measured()
    assert measured.seconds == statistics.median(seconds[-MOST:])


def test_old_iterations_are_forgotten() -> None:
    pace = Pace()
    run(pace, *[1.0] * (WARM_UP + MOST), *[2.0] * MOST)
    (measured,) = pace.measured()
    assert measured.seconds == 2.0


def test_layouts_are_told_apart_by_shape_and_each_warms_up() -> None:
    pace = Pace()
    run(pace, *[9.0] * WARM_UP, *[1.0] * LEAST, layout=DEEP)
    run(pace, *[9.0] * WARM_UP, *[2.0] * LEAST, layout=FLAT)
    assert {m.layout: m.seconds for m in pace.measured()} == {DEEP: 1.0, FLAT: 2.0}


def test_the_same_shape_on_other_nodes_goes_on_where_it_was() -> None:
    pace = Pace()
    moved = DEEP.with_seats((Seat("spare", 0), *DEEP.seats[1:]))
    run(pace, *[9.0] * WARM_UP, *[1.0] * (LEAST - 1))
    run(pace, 1.0, layout=moved)
    (measured,) = pace.measured()
    assert (measured.layout, measured.seconds) == (moved, 1.0)


def test_updates_that_were_applied_from_anothers_report_took_no_time_that_counts() -> None:
    pace = Pace()
    run(pace, *[1.0] * (WARM_UP + LEAST - 1), 0.0)
    assert list(pace.measured()) == []


def test_nothing_is_measured_before_there_is_a_layout() -> None:
    pace = Pace()
    run(pace, *[1.0] * (WARM_UP + LEAST), layout=None)
    assert list(pace.measured()) == []

"""The newest vitals of a task's ranks."""

from __future__ import annotations

from unicron_hpc.planner.layout import Seat
from unicron_hpc.supervisor.rank_messages import RankAddress
from unicron_hpc.supervisor.vitals import FRESH, Vitals
from unicron_hpc.supervisor.watch_messages import Vital

ONE, OTHER = (RankAddress("train", Seat(node, 0), 3) for node in ("n1", "n2"))


def told(*vitals: Vital, now: float = 0.0) -> Vitals:
    some = Vitals()
    for vital in vitals:
        some.note(vital, now)
    return some


def test_the_last_word_counts_while_it_is_fresh() -> None:
    old, new = Vital(ONE, 1, 5, True), Vital(ONE, 1, 6, False)
    vitals = told(old, new)
    assert vitals.of([ONE, OTHER], 1, FRESH) == {ONE: new}
    assert vitals.of([ONE], 1, FRESH + 0.1) == {}
    assert vitals.of([ONE], 1, 0.0) == {}  # forgotten


def test_words_of_another_epoch_or_of_a_process_that_is_gone_do_not_count() -> None:
    vitals = told(Vital(ONE, 1, 5, True), Vital(OTHER, 2, 5, True))
    assert vitals.of([ONE, OTHER], 1, 1.0).keys() == {ONE}
    assert vitals.of([OTHER], 1, 1.0) == {}


def test_somebody_works_as_long_as_one_does() -> None:
    vitals = told(Vital(ONE, 1, 5, False), Vital(OTHER, 1, 5, True))
    assert vitals.somebody_works([ONE, OTHER], 1, 1.0)
    assert not vitals.somebody_works([ONE, OTHER], 2, 1.0)
    vitals.note(Vital(OTHER, 1, 5, False), 1.0)
    assert not vitals.somebody_works([ONE, OTHER], 1, 1.0)

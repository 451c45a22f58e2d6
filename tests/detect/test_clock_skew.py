"""Clocks are compared by an exchange, whatever the messages take."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.clock_skew import LIMIT, Clocks

few = settings(max_examples=40, deadline=None)
seconds = st.floats(0.0, 30.0)


@few
@given(st.floats(-LIMIT, LIMIT), seconds, seconds, st.integers(0, 2**31))
def test_no_delay_of_messages_makes_a_good_clock_look_wrong(
    skew: float, there: float, back: float, sent: int
) -> None:
    clocks = Clocks()
    clocks.sent(1, sent)
    assert clocks.heard("n2", 1, sent + there + skew, sent + there + back) is None or abs(skew) > LIMIT - 1e-6


@few
@given(st.floats(2.5 * LIMIT, 1e6), st.booleans(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_wrong_clock_is_told_once_and_by_no_more_than_it_is_off(
    off: float, ahead: bool, there: float, back: float
) -> None:
    skew, clocks = off if ahead else -off, Clocks()
    clocks.sent(1, 1e6)
    told = clocks.heard("n2", 1, 1e6 + there + skew, 1e6 + there + back)
    assert told is not None
    assert (told > 0) is ahead
    assert abs(told) <= off + 1e-6
    assert clocks.heard("n2", 1, 1e6 + there + skew, 1e6 + there + back) is None


def test_an_answer_to_what_was_never_sent_says_nothing() -> None:
    clocks = Clocks()
    clocks.sent(5, 100.0)
    assert clocks.heard("n2", 4, 900.0, 100.0) is None
    assert clocks.heard("n2", 5, 0.0, 100.0) is None

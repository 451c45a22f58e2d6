"""Which process sits where, as the coordinator knows it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.supervisor.examples import few
from unicron_hpc.planner.layout import Seat
from unicron_hpc.supervisor.rank_messages import RankAddress
from unicron_hpc.supervisor.seats import Seats

SEAT = Seat("n1", 0)


def address(incarnation: int, seat: Seat = SEAT) -> RankAddress:
    return RankAddress("train", seat, incarnation)


def test_each_new_process_in_a_seat_is_its_next_incarnation() -> None:
    seats = Seats("train")
    assert [seats.new(SEAT).address.incarnation for _ in range(3)] == [1, 2, 3]
    assert seats.find(address(2)) is None
    assert seats.find(address(3)) is not None


def test_a_seat_that_was_emptied_goes_on_counting() -> None:
    seats = Seats("train")
    seats.new(SEAT)
    seats.remove(SEAT)
    assert SEAT not in seats
    assert seats.new(SEAT).address == address(2)


def test_a_successor_counts_on_from_what_its_predecessor_started() -> None:
    seats = Seats("train")
    seats.adopt(address(4), pid=17)
    known = seats.find(address(4))
    assert known is not None
    assert (known.pid, known.said_hello) == (17, True)
    assert seats.new(SEAT).address == address(5)


def test_a_process_that_was_given_up_does_not_come_back_with_a_late_list_of_its_node() -> None:
    """An agent lists its live ranks whenever it joins again; the order to kill one may be on its way."""
    seats = Seats("train")
    seats.new(SEAT)
    seats.remove(SEAT)
    seats.adopt(address(1), pid=17)
    assert SEAT not in seats
    second = seats.new(SEAT)
    seats.adopt(address(1), pid=17)
    assert seats.get(SEAT) is second


def test_a_process_that_is_known_is_not_adopted_anew() -> None:
    seats = Seats("train")
    process = seats.new(SEAT)
    seats.adopt(process.address, pid=17)
    assert seats.get(SEAT) is process
    assert not process.said_hello  # only its own hello says that it listens


@few
@given(st.lists(st.tuples(st.sampled_from(["new", "adopt", "remove"]), st.integers(0, 1), st.integers(1, 5))))
def test_no_incarnation_is_ever_given_twice(steps: list[tuple[str, int, int]]) -> None:
    seats, given_out = Seats("train"), set()
    for step, slot, number in steps:
        seat = Seat("n1", slot)
        if step == "new":
            process = seats.new(seat)
            assert process.address not in given_out
            given_out.add(process.address)
        elif step == "adopt":
            seats.adopt(address(number, seat), pid=1)
            given_out.add(address(number, seat))
        else:
            seats.remove(seat)
    for slot in (0, 1):
        process = seats.get(Seat("n1", slot))
        assert process is None or process.address in given_out

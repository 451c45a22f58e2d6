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


def test_only_the_newest_process_of_a_seat_is_found() -> None:
    seats = Seats("train")
    assert [seats.new(SEAT, epoch).address.incarnation for epoch in (1, 4, 5)] == [1, 4, 5]
    assert seats.find(address(4)) is None
    assert seats.find(address(5)) is not None


def test_a_successor_takes_over_what_its_predecessor_started() -> None:
    seats = Seats("train")
    seats.adopt(address(4), pid=17)
    known = seats.find(address(4))
    assert known is not None
    assert (known.pid, known.said_hello) == (17, True)


def test_a_process_that_was_given_up_does_not_come_back_with_a_late_list_of_its_node() -> None:
    """An agent lists its live ranks whenever it joins again; the order to kill one may be on its way."""
    seats = Seats("train")
    seats.new(SEAT, 1)
    seats.remove(SEAT)
    seats.adopt(address(1), pid=17)
    assert SEAT not in seats
    second = seats.new(SEAT, 2)
    seats.adopt(address(1), pid=17)
    assert seats.get(SEAT) is second


def test_a_process_that_is_known_is_not_adopted_anew() -> None:
    seats = Seats("train")
    process = seats.new(SEAT, 1)
    seats.adopt(process.address, pid=17)
    assert seats.get(SEAT) is process
    assert not process.said_hello  # only its own hello says that it listens


@few
@given(st.lists(st.tuples(st.sampled_from(["new", "adopt", "remove"]), st.integers(0, 1), st.integers(1, 5))))
def test_no_incarnation_is_ever_given_twice(steps: list[tuple[str, int, int]]) -> None:
    seats, given_out, epoch = Seats("train"), set(), 5
    for step, slot, number in steps:
        seat = Seat("n1", slot)
        if step == "new":
            epoch += 1
            process = seats.new(seat, epoch)
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

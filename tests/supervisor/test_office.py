"""When a coordinator may decide: after an election everybody is heard first, after a stall a majority."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.supervisor.examples import few
from unicron_hpc.planner.layout import Seat
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import Body, DataReady, Heartbeat, Join, RankExited, RankStarted, Role
from unicron_hpc.supervisor.office import Office, Standing
from unicron_hpc.supervisor.rank_messages import RankAddress

NODES = ["n1", "n2", "n3", "n4", "n5"]
PATIENCE, LIMIT = 2.0, 20.0
NOW = 100.0

RANK = RankAddress("tiny", Seat("n2", 0), 1)
HEARTBEAT, JOIN = Heartbeat(True, 1), Join("tcp://n2:1", 7, 1, 3, True, (), ())
NEWS: list[Body] = [RankExited(RANK, 5, -9, "", 1.0), RankStarted(RANK, 6), DataReady("tiny")]


def office(alive: Collection[str] = NODES) -> Office:
    members = Members(NODES, 4)
    for node in members:
        node.heard = NOW
        node.role = node.role if node.name in alive else Role.LOST
    return Office(members, PATIENCE, LIMIT)


def test_who_is_in_office_decides_at_once() -> None:
    now = office()
    assert now.look(NOW) is Standing.IN_OFFICE
    assert not any(now.hold_back("n2", body) for body in (HEARTBEAT, JOIN, *NEWS))
    assert list(now.release()) == []


class TestJustElected:
    def test_it_waits_until_every_live_member_has_spoken(self) -> None:
        elected = office(alive=["n1", "n2", "n3", "n5"])  # n4 was lost long ago
        elected.succeed("n5", NOW)
        for node in ("n1", "n2"):
            elected.heard(node)
            assert elected.look(NOW + 0.1) is Standing.WAITING
        elected.heard("n3")
        assert elected.look(NOW + 0.2) is Standing.TAKING_OVER
        assert elected.look(NOW + 0.3) is Standing.IN_OFFICE

    def test_nobody_waits_for_the_predecessor(self) -> None:
        elected = office()
        elected.succeed("n1", NOW)
        for node in NODES[1:]:
            elected.heard(node)
        assert elected.look(NOW) is Standing.TAKING_OVER
        assert elected.is_silent("n1")
        assert not elected.is_silent("n2")

    def test_a_predecessor_that_speaks_is_not_silent(self) -> None:
        elected = office()
        elected.succeed("n1", NOW)
        assert elected.is_silent("n1")
        elected.heard("n1")
        assert not elected.is_silent("n1")

    def test_the_silent_ones_have_their_time_and_no_more(self) -> None:
        elected = office()
        elected.succeed("n1", NOW)
        elected.heard("n2")
        assert elected.look(NOW + PATIENCE - 0.01) is Standing.WAITING
        assert elected.look(NOW + PATIENCE) is Standing.TAKING_OVER

    def test_what_members_tell_of_themselves_passes_and_all_else_waits(self) -> None:
        elected = office()
        elected.succeed("n1", NOW)
        assert not elected.hold_back("n2", JOIN)
        assert not elected.hold_back("n2", HEARTBEAT)
        assert all(elected.hold_back("n2", body) for body in NEWS)


class TestAfterAStall:
    def test_a_majority_that_has_seen_a_newer_beat_confirms_it(self) -> None:
        stalled = office()
        stalled.stalled(NOW, beat=8)
        for node in ("n1", "n2"):
            stalled.echoed(node, 8)
            assert stalled.look(NOW + 1) is Standing.WAITING
        stalled.echoed("n3", 9)
        assert stalled.look(NOW + 1) is Standing.CONFIRMED
        assert stalled.look(NOW + 1) is Standing.IN_OFFICE

    @few
    @given(st.lists(st.tuples(st.sampled_from(NODES), st.integers(0, 7)), max_size=20))
    def test_the_echo_of_a_beat_from_before_confirms_nothing(self, echoes: list[tuple[str, int]]) -> None:
        stalled = office()
        stalled.stalled(NOW, beat=8)
        for node, beat in echoes:
            stalled.echoed(node, beat)
        assert stalled.look(NOW + LIMIT) is Standing.WAITING
        assert stalled.look(NOW + LIMIT + 0.1) is Standing.DESERTED

    def test_one_member_that_speaks_often_is_no_majority(self) -> None:
        stalled = office()
        stalled.stalled(NOW, beat=8)
        for beat in range(8, 30):
            stalled.echoed("n2", beat)
        assert stalled.look(NOW) is Standing.WAITING

    def test_lost_nodes_neither_count_nor_confirm(self) -> None:
        stalled = office(alive=["n1", "n2", "n3"])
        stalled.stalled(NOW, beat=8)
        for node in ("n1", "n4", "n5"):
            stalled.echoed(node, 8)
        assert stalled.look(NOW) is Standing.WAITING
        stalled.echoed("n2", 8)
        assert stalled.look(NOW) is Standing.CONFIRMED

    def test_exactly_half_is_not_enough(self) -> None:
        stalled = office(alive=["n1", "n2", "n3", "n4"])
        stalled.stalled(NOW, beat=8)
        stalled.echoed("n1", 8)
        stalled.echoed("n2", 8)
        assert stalled.look(NOW + LIMIT) is Standing.WAITING

    def test_a_second_stall_asks_everybody_anew(self) -> None:
        stalled = office()
        stalled.stalled(NOW, beat=8)
        for node in ("n1", "n2"):
            stalled.echoed(node, 8)
        stalled.stalled(NOW + 5, beat=12)
        stalled.echoed("n3", 11)
        stalled.echoed("n4", 12)
        assert stalled.look(NOW + 5) is Standing.WAITING
        assert stalled.look(NOW + 5 + LIMIT) is Standing.WAITING  # with all of its time

    @pytest.mark.parametrize("body", [JOIN, *NEWS])
    def test_whatever_asks_for_a_decision_waits(self, body: Body) -> None:
        stalled = office()
        stalled.stalled(NOW, beat=8)
        assert stalled.hold_back("n2", body)
        assert list(stalled.release()) == [("n2", body)]

    def test_heartbeats_are_not_kept_the_next_one_says_the_same(self) -> None:
        stalled = office()
        stalled.stalled(NOW, beat=8)
        assert stalled.hold_back("n2", HEARTBEAT)
        assert list(stalled.release()) == []

    def test_a_stall_during_a_takeover_is_settled_first(self) -> None:
        elected = office()
        elected.succeed("n1", NOW)
        elected.stalled(NOW, beat=3)
        for node in NODES:
            elected.heard(node)
        assert elected.look(NOW + PATIENCE) is Standing.WAITING
        assert elected.hold_back("n2", JOIN)  # passes in a takeover, not now
        for node in NODES:
            elected.echoed(node, 3)
        assert elected.look(NOW + PATIENCE) is Standing.CONFIRMED
        assert elected.look(NOW + PATIENCE) is Standing.TAKING_OVER


@few
@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from([*NEWS, HEARTBEAT])), max_size=9),
)
def test_what_was_held_back_comes_once_and_in_the_order_of_arrival(
    elected: bool, arriving: list[tuple[str, Body]]
) -> None:
    now = office()
    if elected:
        now.succeed("n1", NOW)
    else:
        now.stalled(NOW, beat=1)
    for sender, body in arriving:
        now.hold_back(sender, body)
    news = [(sender, body) for sender, body in arriving if not isinstance(body, Heartbeat)]
    assert list(now.release()) == news
    assert list(now.release()) == []

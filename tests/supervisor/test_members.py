"""Who is there, who trains, who has gone silent."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.supervisor.examples import few
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import Role

NODES = ["n1", "n2", "n3", "n4"]


def joined(active: int = 3, **heard: float) -> Members:
    members = Members(NODES, active)
    for name, moment in heard.items():
        node = members.get(name)
        assert node is not None
        node.heard, node.address, node.slots, node.agent_pid = moment, f"tcp://{name}:1", 2, 100
    return members


def test_the_first_nodes_train_and_the_rest_are_spares_in_slurms_order() -> None:
    members = joined(active=3)
    assert [(node.name, node.role) for node in members] == [
        ("n1", Role.ACTIVE),
        ("n2", Role.ACTIVE),
        ("n3", Role.ACTIVE),
        ("n4", Role.SPARE),
    ]


def test_a_node_is_alive_from_its_first_word_until_it_is_lost() -> None:
    members = joined(n1=1.0, n2=1.0)
    assert [node.name for node in members.alive()] == ["n1", "n2"]
    assert [node.name for node in members.waiting()] == ["n3", "n4"]
    next(iter(members)).role = Role.LOST
    assert [node.name for node in members.alive()] == ["n2"]


def test_only_nodes_that_have_spoken_can_go_silent() -> None:
    members = joined(n1=10.0, n2=7.0)
    assert [node.name for node in members.silent(10.0, 2.0)] == ["n2"]
    assert members.silent(9.0, 2.0) == []  # exactly the time-out is not too long


def test_a_lost_node_is_not_found_silent_again() -> None:
    members = joined(n1=0.0, n2=0.0)
    next(iter(members)).role = Role.LOST
    assert [node.name for node in members.silent(100.0, 2.0)] == ["n2"]


@few
@given(st.floats(0, 1000), st.floats(0, 1000))
def test_a_pause_of_our_own_makes_nobody_silent(heard: float, pause: float) -> None:
    members = joined(n1=heard)
    members.shift(pause)
    assert members.silent(heard + pause, timeout=0.001) == []
    assert len(members.waiting()) == 3  # who never spoke still has not


def test_a_successor_knows_all_that_its_predecessor_knew_and_gives_everybody_time() -> None:
    before = joined(n1=1.0, n2=1.0, n4=1.0)
    lost, kept = before.get("n2"), before.get("n4")
    assert lost is not None
    assert kept is not None
    lost.role, kept.role = Role.LOST, Role.ACTIVE
    after = Members(NODES, 3)
    after.adopt(before.snapshot(), now=50.0)
    assert after.snapshot() == before.snapshot()
    assert [node.name for node in after.alive()] == ["n1", "n4"]
    assert after.silent(51.0, 2.0) == []
    assert [node.name for node in after.waiting()] == ["n3"]


def test_adopting_a_node_outside_the_allocation_adds_it() -> None:
    members = joined()
    (first, *_) = joined(n1=1.0).snapshot()
    members.adopt([msgspec.structs.replace(first, node="n9")], now=5.0)
    assert [node.name for node in members.alive()] == ["n9"]

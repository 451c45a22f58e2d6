"""What a coordinator knows of nodes from earlier incidents, its predecessors' included."""

from __future__ import annotations

from unicron_hpc.supervisor.node_history import NodeHistory


def test_incidents_count_for_their_node_and_for_a_time() -> None:
    history = NodeHistory()
    history.add("n1", 100.0)
    history.add("n1", 200.0)
    history.add("n2", 200.0)
    assert history.count("n1", since=100.0) == 2
    assert history.count("n1", since=150.0) == 1
    assert history.count("n3", since=0.0) == 0


def test_a_successor_gets_what_still_counts() -> None:
    before, after = NodeHistory(), NodeHistory()
    before.add("n1", 100.0)
    before.add("n1", 200.0)
    before.add("n2", 100.0)
    after.adopt(before.since(150.0))
    after.add("n1", 300.0)
    assert after.since(0.0) == {"n1": (200.0, 300.0)}

"""What a coordinator knows of nodes from earlier incidents, its predecessors' included."""

from __future__ import annotations

from unicron_hpc.supervisor.node_history import NodeHistory


def closed(node: str, when: float) -> dict[str, object]:
    return {"type": "incident_closed", "failed_node": node, "time": when}


def test_incidents_count_for_their_node_and_for_a_time() -> None:
    history = NodeHistory()
    history.add("n1", 100.0)
    history.add("n1", 200.0)
    history.add("n2", 200.0)
    assert history.count("n1", since=100.0) == 2
    assert history.count("n1", since=150.0) == 1
    assert history.count("n3", since=0.0) == 0


def test_a_successor_reads_in_the_journal_what_happened_before_its_time() -> None:
    history = NodeHistory()
    events = [
        closed("n1", 100.0),
        closed("", 110.0),
        closed("n1", 120.0),
        {"type": "incident_closed", "time": 1.0},
    ]
    history.learn(events, until=110.0)
    history.add("n1", 120.0)  # its own: in the journal, too
    assert history.count("n1", since=0.0) == 2

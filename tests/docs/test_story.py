"""What the quickstart tells of a loss is what the journal says.

The journal is of a real run: n2 is killed and the spare n5 takes its seat, then n5 is killed and no spare is
left.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quickstart_steps import story
from quickstart_steps.run_files import Lines, Record
from quickstart_steps.story import Kill, Recovery

JOURNAL = Path(__file__).parent / "fixtures" / "two-lost-nodes.events.jsonl"


@pytest.fixture(scope="module")
def events() -> list[Record]:
    return [json.loads(line) for line in JOURNAL.read_text().splitlines()]


def killed(events: list[Record], node: str) -> Kill:
    """The kill of a node, two seconds before its agent was given up."""
    (lost,) = [event for event in events if event["type"] == "agent_lost" and event["node"] == node]
    return Kill(node, lost["time"] - 2.0)


def recovered(events: list[Record], node: str) -> Recovery:
    found = story.recovery(events, killed(events, node))
    assert found is not None
    return found


def test_a_spare_that_takes_the_seat_is_named(events: list[Record]) -> None:
    words = story.what_happened(recovered(events, "n2"))
    assert "It had computed layers 3-5 of pipeline 0 (rank 1)." in words
    assert "Spare n5 took its seat." in words


def test_without_a_spare_the_new_layout_is_told(events: list[Record]) -> None:
    text = "\n".join(story.what_happened(recovered(events, "n5")))
    assert "No spare was left, so the layers were dealt anew over n1, n3, n4: pipeline 0: layers 0-5" in text


def test_bytes_are_told_by_where_they_came_from(events: list[Record]) -> None:
    found = recovered(events, "n2")
    sources = found.done["state_sources"]
    assert sources["peer"] > 0
    (line,) = [line for line in story.what_happened(found) if line.startswith("State:")]
    assert f"{sources['peer']:,} bytes came from other nodes' memory, 0 bytes were read from disk" in line


def test_processes_that_live_on_are_counted(events: list[Record]) -> None:
    assert "3 of the 4 ranks kept their process; nothing was resubmitted." in story.what_happened(
        recovered(events, "n2")
    )


def test_a_refused_drain_says_who_must_act(events: list[Record]) -> None:
    assert "ask one to run: scontrol update NodeName=n2" in story.what_happened(recovered(events, "n2"))[-1]


def test_steps_add_up_to_no_more_than_the_whole(events: list[Record]) -> None:
    for node in ("n2", "n5"):
        rows = {name: seconds for name, seconds, _ in story.how_long(recovered(events, node))}
        assert rows["detection"] == pytest.approx(2.0)
        whole = rows.pop("in all")
        assert 0.8 * whole < sum(rows.values()) <= whole


def test_a_recovery_is_told_only_once_an_iteration_is_committed(events: list[Record]) -> None:
    kill = killed(events, "n2")
    closed = next(at for at, event in enumerate(events) if event["type"] == "incident_closed")
    assert story.recovery(events[:closed], kill) is None
    assert story.recovery(events[: closed + 1], kill) is not None


@pytest.mark.parametrize(
    ("numbers", "unbroken"),
    [([1, 2, 3], True), ([1, 3], False), ([1, 2, 2, 3], False), ([2, 3], False), ([], False)],
)
def test_iterations_are_unbroken_if_each_was_committed_once(numbers: list[int], unbroken: bool) -> None:
    assert story.is_unbroken([{"iteration": number} for number in numbers]) is unbroken


def test_lines_are_read_only_once_they_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = Lines(file)
    assert lines.new() == []
    file.write_text('{"iteration": 1}\n{"itera')
    assert lines.new() == [{"iteration": 1}]
    file.write_text('{"iteration": 1}\n{"iteration": 2}\n')
    assert lines.new() == [{"iteration": 2}]
    assert [line["iteration"] for line in lines.all] == [1, 2]

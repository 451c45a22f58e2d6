"""Incidents as stories, and the commands that tell them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from unicron_hpc.cli.main import main
from unicron_hpc.report.journal import read_lines
from unicron_hpc.report.sentences import TOLD, sentence
from unicron_hpc.report.status import status_of
from unicron_hpc.report.story import incidents_of
from unicron_hpc.report.telling import MOST_WITNESSES, incident_lines, witness

JOURNAL = Path(__file__).parent / "journals" / "rank_killed_then_node_lost.jsonl"
RUN = list(read_lines(JOURNAL))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run folder with the journal of a real run."""
    folder = tmp_path / "gpt-tiny-4711"
    folder.mkdir()
    (folder / "train.yaml").touch()  # by which a run folder is known
    shutil.copy(JOURNAL, folder / "events.jsonl")
    return folder


def fault(incident: int, **more: Any) -> dict[str, Any]:
    """A fault of rank 0 on n1."""
    fields = {
        "time": 10.0,
        "type": "fault_detected",
        "epoch": 1,
        "task": "a",
        "incident": incident,
        "node": "n1",
        "rank": 0,
        "error": "connection to a peer lost",
        "method": "exception propagation",
        "severity": "SEV3",
        "evidence": "RuntimeError: Connection closed by peer",
    }
    return {**fields, **more}


def test_every_incident_of_a_run_is_told_with_its_place_and_its_time() -> None:
    killed, lost = incidents_of(RUN)
    assert (killed.error, killed.ranks, killed.nodes, killed.severity) == (
        "killed (SIGKILL)",
        [1],
        ["n2"],
        "SEV2",
    )
    assert (lost.error, lost.ranks, lost.nodes) == ("lost connection", [], ["n4"])
    assert lost.seconds == pytest.approx(2.142, abs=1e-3)
    assert lost.transition_seconds == pytest.approx(1.996, abs=1e-3)
    assert lost.ended == "over at iteration 132"


def test_the_story_lists_what_was_done_in_order() -> None:
    done = incidents_of(RUN)[1].actions
    assert done[0] == "go on without the node"
    assert "a spare in the lost node's place" in done[1]
    assert done[2].startswith("task gpt-tiny computes in epoch 3")
    assert len(done) == 3


def test_a_verdict_replaces_the_first_impression_and_keeps_its_evidence() -> None:
    verdict = {
        "time": 11.0,
        "type": "verdict",
        "epoch": 1,
        "task": "a",
        "incident": 1,
        "error": "ECC error",
        "severity": "SEV1",
        "suspects": [7],
        "nodes": ["n8"],
        "victims": [0],
        "collateral": [],
        "evidence": ["rank 7 on n8 said: uncorrectable ECC error"],
        "corrects": True,
    }
    (story,) = incidents_of([fault(1), verdict])
    assert (story.error, story.ranks, story.nodes, story.victims) == ("ECC error", [7], ["n8"], [0])
    assert story.evidence[-1] == "rank 7 on n8 said: uncorrectable ECC error"
    assert "Connection closed by peer" in story.evidence[0]


def test_a_witness_is_not_told_twice() -> None:
    heard = "rank 0 on n1 at +0.0 s: connection to a peer lost: by exception propagation: RuntimeError: x"
    other = "node n2 at +1.5 s: lost connection: by node health monitoring: no heartbeat for 2.1 s"
    verdict = {
        "time": 11.0, "type": "verdict", "epoch": 1, "task": "a", "incident": 1, "error": "lost connection",
        "severity": "SEV1", "suspects": [], "nodes": ["n2"], "evidence": [heard, other],
    }  # fmt: skip
    lost = fault(1, node="n2", rank=None, error="lost connection", evidence="no heartbeat for 2.1 s")
    (story,) = incidents_of([fault(1), lost, verdict])
    assert story.evidence == [heard, other]
    lines = "\n".join(incident_lines(story))
    assert "rank 0 on n1: connection to a peer lost" in lines
    assert "n2, 1.5 s later: lost connection" in lines


def test_a_decision_is_told_with_its_reason_and_whom_it_was_about() -> None:
    chosen = {
        "time": 10.1, "type": "action_chosen", "epoch": 1, "incident": 1, "node": "n1", "rank": 0,
        "action": "again in place", "rule": "saw a peer go", "reason": "the fault is elsewhere",
    }  # fmt: skip
    (story,) = incidents_of([fault(1), chosen, {**chosen, "rank": 1}])
    assert story.actions == ["rank 0 on n1: again in place (the fault is elsewhere)"]


def test_what_is_kept_of_an_iteration_is_told_with_its_incident() -> None:
    reused = {
        "time": 10.2,
        "type": "iteration_reused",
        "epoch": 2,
        "task": "a",
        "iteration": 9,
        "kept": 3,
        "redone": 1,
    }
    (story,) = incidents_of([fault(1), reused])
    assert story.actions[1:] == [sentence(reused)]


def test_how_a_process_ended_is_not_hidden_by_what_it_had_logged() -> None:
    killed = fault(1, method="process supervision", evidence="ended by SIGKILL\nUserWarning: old")
    (story,) = incidents_of([killed])
    assert story.evidence[0].endswith("ended by SIGKILL")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "rank 1 on n2 at +0.0 s: PeerLost: [/a/gloo/tcp/pair.cc:537] Read error [::1]:5: no. This i",
            "rank 1 on n2: PeerLost: Read error [::1]:5: no",
        ),
        ("said [/etc/hosts] and more", "said [/etc/hosts] and more"),
    ],
)
def test_a_witness_is_told_in_a_persons_words(words: str, told: str) -> None:
    assert witness(words) == told


def test_status_of_a_job_that_is_over_says_that_it_shows_the_past(run_folder: Path) -> None:
    told = CliRunner().invoke(main, ["status", str(run_folder)], env={"COLUMNS": "200"})
    assert "where everything was last" in told.output


def test_status_has_no_process_of_a_lost_node(run_folder: Path) -> None:
    told = CliRunner().invoke(main, ["status", str(run_folder)], env={"COLUMNS": "200"})
    (line,) = [line for line in told.output.splitlines() if "│ lost   │" in line]
    assert line.split("│")[3].strip() == "-"


def test_later_witnesses_add_to_the_evidence_and_change_nothing_else() -> None:
    (story,) = incidents_of([fault(1), fault(1, time=11.0, rank=2, error="timeout", severity="SEV2")])
    assert (story.error, story.severity, story.detected) == ("connection to a peer lost", "SEV3", 10.0)
    assert len(story.evidence) == 2
    assert len(story.actions) == 1


def test_a_drain_is_told_with_the_incident_that_made_it_needed() -> None:
    drained = {"time": 12.0, "type": "drain_result", "epoch": 1, "node": "n1", "message": "n1 is draining"}
    elsewhere = {**drained, "node": "n9"}
    (story,) = incidents_of([fault(1, severity="SEV1"), drained, elsewhere])
    assert story.actions == ["go on without the node", "drain of n1: n1 is draining"]


def test_an_incident_that_the_job_did_not_survive_says_so() -> None:
    end = {"time": 13.0, "type": "job_finished", "epoch": 1, "state": "failed", "cause": "nan"}
    (story,) = incidents_of([fault(1), end])
    assert story.ended == "not over when the job failed"
    assert "not over when the job failed" in incident_lines(story)[-1]


def test_many_witnesses_are_counted_and_not_all_named() -> None:
    (story,) = incidents_of([fault(1, rank=rank) for rank in range(MOST_WITNESSES + 3)])
    assert "and 3 more" in "\n".join(incident_lines(story))


def test_the_command_tells_what_broke_how_we_know_what_was_done_and_how_long_it_took(
    run_folder: Path,
) -> None:
    told = CliRunner().invoke(main, ["events", "--incidents", str(run_folder)])
    assert told.exit_code == 0, told.output
    for title in ("what broke", "how we know", "what was done", "how long"):
        assert told.output.count(title) == 2
    assert "rank 1 on n2" in told.output
    assert "2.14 s from the first sign to the next commit" in told.output


def test_programs_get_the_incidents_as_a_list_and_the_events_as_they_are(run_folder: Path) -> None:
    listed = CliRunner().invoke(main, ["events", "--incidents", "--json", str(run_folder)])
    assert [one["number"] for one in json.loads(listed.output)] == [1, 2]
    events = CliRunner().invoke(main, ["events", "--json", str(run_folder)])
    assert [json.loads(line) for line in events.output.splitlines()] == RUN


def test_events_are_sentences_with_time_and_epoch(run_folder: Path) -> None:
    told = CliRunner().invoke(main, ["events", str(run_folder)])
    assert len(told.output.splitlines()) == len(RUN)
    assert "[2] incident 1 is over" in told.output


def test_status_shows_the_latest_incidents(run_folder: Path) -> None:
    told = CliRunner().invoke(main, ["status", str(run_folder)], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert "SEV1: go on without the node" in told.output
    assert "lost connection" in told.output
    assert "node health monitoring" in told.output


def test_whole_incidents_cannot_be_followed(run_folder: Path) -> None:
    refused = CliRunner().invoke(main, ["events", "--incidents", "--follow", str(run_folder)])
    assert refused.exit_code == 2
    assert "--follow" in refused.output


def test_a_drain_is_told_once_whatever_events_name_the_task() -> None:
    chosen = {"time": 10.1, "type": "action_chosen", "epoch": 1, "incident": 1, "action": "the node is out"}
    drained = {"time": 12.0, "type": "drain_result", "epoch": 1, "node": "n1", "message": "n1 is draining"}
    (story,) = incidents_of([fault(1, severity="SEV1"), chosen, drained])
    assert story.actions == ["the node is out", "drain of n1: n1 is draining"]


def test_an_action_that_was_chosen_for_several_ranks_is_told_once() -> None:
    chosen = {"time": 10.1, "type": "action_chosen", "epoch": 1, "incident": 1, "action": "again in place"}
    (story,) = incidents_of(
        [fault(1), chosen, fault(1, rank=1), chosen, {**chosen, "action": "a new process"}]
    )
    assert story.actions == ["again in place", "a new process"]


def test_several_ranks_are_told_in_their_order() -> None:
    (story,) = incidents_of([fault(1, rank=2), fault(1, rank=1)])
    assert "ranks 1 and 2 on n1" in incident_lines(story)[1]


def test_stacks_are_told_by_the_files_that_hold_them() -> None:
    ranks = [{"slot": k, "pid": 7, "stacks": "...", "file": f"stacks-n1-{k}.txt"} for k in (0, 1)]
    event = {"time": 1.0, "type": "stacks_dumped", "epoch": 1, "task": "a", "node": "n1", "ranks": ranks}
    assert sentence(event).endswith("on n1 were written to logs/stacks-n1-0.txt and logs/stacks-n1-1.txt")


KEYS = sorted({key for event in RUN for key in event} | {"incident", "suspects", "evidence", "factor"})


@pytest.mark.parametrize("junk", [None, 5, "x", [], [1], {"a": 1}, [{}], -1.5])
def test_events_of_another_version_or_damaged_ones_hide_nothing_of_the_others(junk: Any) -> None:
    strange = [
        {**fields, "time": 0.0, "type": kind, "epoch": 0}
        for kind in sorted(TOLD)
        for fields in ({}, dict.fromkeys(KEYS, junk))
    ]
    first = next(k for k, event in enumerate(RUN) if event["type"] == "job_started")
    told = incidents_of([*RUN[:first], *strange, *RUN[first:]])
    assert {"killed (SIGKILL)", "lost connection"} <= {story.error for story in told}
    status = status_of([*strange, *RUN], [{"task": junk}, {"iteration": junk}])
    assert status["coordinator"] == "n1"
    assert "n3" in {node["name"] for node in status["nodes"]}


@pytest.mark.parametrize("words", [["events"], ["events", "--incidents"], ["status"]])
def test_a_journal_cannot_speak_to_the_terminal(words: list[str], run_folder: Path) -> None:
    with (run_folder / "events.jsonl").open("a") as file:
        said = "\x1b]0;title\x07 \x9b31m text"
        file.write(json.dumps(fault(9, error=said, evidence=said, node=said)) + "\n")
        file.write(json.dumps({"time": 1.0, "type": said, "epoch": 1, "key": said}) + "\n")
        file.write("{}\n5\n\x00\n")
    done = CliRunner().invoke(main, [*words, str(run_folder)])
    assert done.exit_code == 0, done.output
    assert not any((c < " " and c != "\n") or "\x7f" <= c < "\xa0" for c in done.stdout)


def attempt(*events: dict[str, Any], nodes: Sequence[str] = ("n1",)) -> list[dict[str, Any]]:
    """The journal of a job from its start on."""
    begun = {
        "time": 5.0,
        "type": "job_started",
        "epoch": 0,
        "job_id": "4711",
        "nodes": list(nodes),
        "active": len(nodes),
        "train_iters": {"a": 9},
    }
    return [begun, *events]


def closed(incident: int, took: float = 1.0) -> dict[str, Any]:
    return {
        "time": 12.0,
        "type": "incident_closed",
        "epoch": 2,
        "task": "a",
        "incident": incident,
        "iteration": 3,
        "seconds": took,
    }


REQUEUED = {
    "time": 13.0,
    "type": "job_finished",
    "epoch": 7,
    "state": "cancelled",
    "cause": "SIGTERM received",
}


def test_a_requeued_job_counts_its_incidents_anew_and_none_is_taken_for_another() -> None:
    before = attempt(fault(1, error="killed (SIGKILL)"), closed(1), fault(2), REQUEUED)
    first, second, third = incidents_of([*before, *attempt(fault(1, error="ECC error", node="n7"))])
    assert [story.number for story in (first, second, third)] == [1, 2, 1]
    assert (first.error, first.ended) == ("killed (SIGKILL)", "over at iteration 3")
    assert second.ended == "not over when the job cancelled"
    assert (third.error, third.nodes, third.ended) == ("ECC error", ["n7"], "open")


def test_an_attempt_that_nobody_ended_leaves_no_open_incident() -> None:
    (story,) = incidents_of([*attempt(fault(1)), *attempt()])
    assert story.ended == "not over when the job began anew"


def test_status_of_a_requeued_job_is_that_of_its_last_attempt() -> None:
    before = attempt(fault(3, epoch=7), REQUEUED, nodes=("n1", "n2"))
    elected = {"time": 20.0, "type": "coordinator_elected", "epoch": 0, "node": "n2"}
    status = status_of([*before, elected, *attempt(nodes=("n2", "n8"))], [])
    assert (status["state"], status["cause"], status["incidents"]) == ("RUNNING", "", 0)
    assert (status["epoch"], status["coordinator"]) == (0, "n2")
    assert [node["name"] for node in status["nodes"]] == ["n2", "n8"]


def test_an_incident_that_was_opened_again_took_all_its_parts() -> None:
    moves = {"time": 13.0, "type": "transition_started", "epoch": 3, "task": "a", "incident": 1}
    state = {"time": 13.1, "type": "state_lost", "epoch": 3, "task": "a", "units": ["layer 1"]}
    (story,) = incidents_of([fault(1), closed(1, 2.0), moves, state])
    assert (story.seconds, story.ended) == (None, "open")
    (story,) = incidents_of([fault(1), closed(1, 2.0), moves, state, closed(1, 0.5)])
    assert (story.seconds, story.ended) == (2.5, "over at iteration 3")
    assert any("layer 1" in action for action in story.actions)


def test_a_node_that_is_lost_long_after_is_no_part_of_an_older_incident() -> None:
    lost = {"time": 900.0, "type": "agent_lost", "epoch": 5, "node": "n1", "reason": "no heartbeat for 2 s"}
    (story,) = incidents_of([fault(1), closed(1), lost])
    assert not any("out of the job" in action for action in story.actions)


def test_a_node_that_is_out_for_what_came_to_light_late_is_told_with_its_incident() -> None:
    chosen = {
        "time": 12.1,
        "type": "action_chosen",
        "epoch": 2,
        "task": "a",
        "incident": 1,
        "node": "n1",
        "severity": "SEV1",
        "action": "the node is out and to be drained",
    }
    lost = {"time": 12.2, "type": "agent_lost", "epoch": 2, "node": "n1", "reason": "ECC error"}
    (story,) = incidents_of([fault(1), closed(1), fault(1, error="ECC error"), chosen, lost])
    assert story.actions[-1] == "n1 is out of the job: ECC error"


@pytest.mark.parametrize("words", [["events"], ["events", "--incidents"], ["status"]])
@pytest.mark.parametrize("key", ["error", "severity", "method", "rank", "evidence", "node", "seconds"])
@pytest.mark.parametrize("junk", [5, None, [], {"a": 1}, [[1]], float("inf"), float("nan"), "\ud83d", True])
def test_no_field_of_an_event_keeps_the_commands_from_telling_the_rest(
    words: list[str], key: str, junk: Any, run_folder: Path
) -> None:
    with (run_folder / "events.jsonl").open("a") as file:
        for event in (fault(9), closed(9), {"time": 1.0, "type": "agent_lost", "epoch": 1, "node": "n1"}):
            file.write(json.dumps({**event, key: junk}) + "\n")
    done = CliRunner().invoke(main, [*words, str(run_folder)])
    assert done.exit_code == 0, done.output


def test_status_has_each_rank_on_its_node_and_says_what_every_node_is_for() -> None:
    def shown(events: Sequence[dict[str, Any]]) -> dict[str, tuple[str, list[int]]]:
        nodes = status_of(events, [])["nodes"]
        return {node["name"]: (node["role"], [rank["rank"] for rank in node["ranks"]]) for node in nodes}

    lost = next(k for k, event in enumerate(RUN) if event["type"] == "agent_lost")
    train = {"n1": ("active", [0]), "n2": ("active", [1]), "n3": ("active", [2])}
    assert shown(RUN[:lost]) == {**train, "n4": ("active", [3]), "n5": ("spare", [])}
    assert shown(RUN[: lost + 1]) == {**train, "n4": ("lost", []), "n5": ("spare", [])}
    assert shown(RUN) == {**train, "n4": ("lost", []), "n5": ("active", [3])}

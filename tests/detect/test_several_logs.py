"""Logs of several ranks and nodes as they are met in the field, and which line is the first cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unicron_hpc.cli.explain_output import show_story
from unicron_hpc.detect.log_places import place_in_name
from unicron_hpc.detect.log_scan import LogScan
from unicron_hpc.detect.log_verdict import Story, tell

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "several_logs.jsonl").read_text("utf-8").splitlines()
]


def story(logs: dict[str, str]) -> Story:
    findings, ranks = [], []
    for name, text in logs.items():
        place = place_in_name(name)
        scanner = LogScan(name, place, 2025)
        for number, line in enumerate(text.splitlines(), start=1):
            scanner.feed(line.encode(), number)
        findings += scanner.finish()
        ranks += [] if place.rank is None else [place.rank]
    return tell(findings, ranks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_first_cause_is_told_and_what_followed_from_it(case: dict[str, Any]) -> None:
    told = story(case["files"])
    found: dict[str, Any] = {"first": None}
    if told.first_cause is not None:
        first = told.findings[told.first_cause]
        found = {
            "first": f"{first.file}:{first.line_number}",
            "severity": first.rule.severity,
            "blame": first.rule.blame.value,
        }
    found["suspects"] = [rank for rank in told.verdict.suspects if rank >= 0]
    found["others"] = [
        f"{finding.file}:{finding.line_number}"
        for k, finding in enumerate(told.findings)
        if k not in told.consequences and k != told.first_cause and finding.rule.severity != "INFO"
    ]
    assert {key: found[key] for key in case["expected"]} == case["expected"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_order_of_the_files_does_not_matter(case: dict[str, Any]) -> None:
    def first(logs: dict[str, str]) -> str | None:
        told = story(logs)
        return None if told.first_cause is None else told.findings[told.first_cause].rule.error

    assert first(case["files"]) == first(dict(reversed(case["files"].items())))


SAYS = {
    "watchdog both, one rank never": "Look at rank 2 first: said nothing while 2",
    "watchdog, lagging seq": "Look at rank 2 first: its collective's number lags behind",
    "monitored barrier": "Look at rank 3 first: did not come to a barrier",
    "scancel": "No failure in these logs before the job or step was cancelled.",
}


@pytest.mark.parametrize("name", SAYS)
def test_without_a_cause_people_are_told_where_to_look(name: str) -> None:
    files = next(case["files"] for case in CASES if case["id"] == name)
    assert SAYS[name] in show_story(story(files), len(files)).splitlines()[0]


WATCHDOG = (
    "[rank{0}]:[E303 {1} ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600027 ms"
)
STALL = "[Mon Mar  3 10:00:00 2025] nfs: server fs1 not responding, still trying"


@pytest.mark.parametrize(
    ("at", "found"), [("10:20:00.1", True), ("18:00:00.1", False), ("09:59:00.1", False)]
)
def test_a_file_server_that_did_not_answer_is_the_cause_of_waiting_soon_after(at: str, found: bool) -> None:
    told = story({"n1.dmesg": STALL, "rank-0.log": WATCHDOG.format(0, at)})
    assert (told.first_cause is not None) is found


def test_a_rank_that_says_nothing_goes_before_a_mere_warning() -> None:
    waiting = {f"rank-{rank}.log": WATCHDOG.format(rank, "10:20:00.1") for rank in (0, 1)}
    told = story({"n1.dmesg": STALL, **waiting, "rank-2.log": "iteration 3"})
    assert (told.first_cause, told.verdict.suspects) == (None, (2,))


def test_only_an_error_of_the_program_is_taken_for_survived_when_it_is_logged_as_a_warning() -> None:
    def first(text: str) -> str:
        logs = {
            "rank-0.log": f"2025-03-03 10:00:01 WARNING {text}",
            "rank-1.log": "2025-03-03 10:00:05 KeyError: 'a'",
        }
        told = story(logs)
        assert told.first_cause is not None
        return told.findings[told.first_cause].file

    assert first("no fused kernel: ModuleNotFoundError: No module named 'apex'") == "rank-1.log"
    assert first("RuntimeError: CUDA error: an illegal memory access was encountered") == "rank-0.log"


def test_the_same_error_of_another_rank_in_one_log_stays_an_error() -> None:
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    told = story({"run.log": f"[rank3]: {ecc}\n[rank6]: {ecc}\n"})
    assert (told.first_cause, told.consequences, told.verdict.suspects) == (0, frozenset(), (3, 6))

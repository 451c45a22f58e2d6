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

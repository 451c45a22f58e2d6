"""The error table: every row explains what it is there for, and nothing of a row above it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detect.field_cases import CASES
from unicron_hpc.detect.literals import required_words
from unicron_hpc.detect.rule import Rule, Scope, compiled
from unicron_hpc.detect.severity import Blame, Severity
from unicron_hpc.detect.table import FAMILIES, Table, default_table, families

ROWS = default_table().rows
LINES = {case_id: case for case_id, case in CASES.items() if case["kind"] == "log_line"}
few = settings(max_examples=60, deadline=None)

#: What the field calls a line, and what that is in our words.
CLASSES = {
    "node": lambda row: row.severity == "SEV1" and row.blame is Blame.NODE,
    "application": lambda row: row.blame is Blame.PROGRAM,
    "consequence": lambda row: row.collateral and row.severity == "INFO",
    "warning": lambda row: row.severity == "INFO" and row.blame is Blame.NOBODY,
    "symptom": lambda row: row.collateral and row.severity == "SEV3",
    "ambiguous": lambda row: row.vague and row.severity == "SEV3",
    "network_or_peer_death": lambda row: row.blame is Blame.NETWORK and row.collateral,
    "application_or_gpu": lambda row: row.severity == "SEV2" and row.blame is Blame.PROCESS,
    "requeue": lambda row: row.severity == "INFO" and row.blame is Blame.NOBODY,
    "user_cancel_or_kill_on_bad_exit": lambda row: row.severity == "INFO" and row.collateral,
    "collateral": lambda row: row.collateral,
    "unkillable": lambda row: row.severity == "SEV1" and not row.drains,
    "usage": lambda row: row.severity == "PROGRAM",
    "port": lambda row: row.severity == "SEV3" and row.error == "address in use",
    "network_setup": lambda row: row.blame is Blame.NETWORK and row.severity == "INFO",
}  # fmt: skip


def rule(name: str, pattern: str, **more: object) -> Rule:
    values = {"error": name, "severity": "SEV2", "blame": Blame.PROCESS, "meaning": "A test."} | more
    return Rule(name=name, pattern=pattern, **values)


@pytest.mark.parametrize("case_id", LINES)
def test_a_line_from_the_field_is_what_the_field_calls_it(case_id: str) -> None:
    expected = LINES[case_id]["expected"]
    row = default_table().find(LINES[case_id]["input"])
    assert row is not None
    assert row.drains == expected.get("drain", row.drains)
    if "class" in expected:
        assert CLASSES[expected["class"]](row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_rows_example_is_explained_by_the_row(row: Rule) -> None:
    found = default_table().find(row.example, exception=row.scope is Scope.EXCEPTION)
    assert found is not None
    assert found.name == row.name


def test_every_row_says_what_it_means_what_to_do_and_where_it_is_from() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.meaning.endswith(".")
        assert row.advice.endswith(".")
        assert row.source != "site rule"
        assert row.error == row.error.strip()
    assert [family for family, _ in families()] == list(FAMILIES)


def test_only_a_node_is_drained_and_a_program_never() -> None:
    for row in ROWS:
        if row.drains:
            assert (row.severity, row.blame, row.collateral) == ("SEV1", Blame.NODE, False)
        if row.severity == "PROGRAM":
            assert row.blame in {Blame.PROGRAM, Blame.NETWORK}
        if row.collateral:
            assert row.severity != "SEV1"


@pytest.mark.parametrize("row", [row for row in ROWS if row.pattern], ids=lambda row: row.name)
def test_the_quick_test_lets_every_text_through_that_fits(row: Rule) -> None:
    words = required_words(row.pattern)
    assert words, "without a required word this row slows every line down"
    strategy = st.from_regex(re.compile(row.pattern, re.ASCII))

    @settings(max_examples=3, deadline=None, database=None)
    @given(strategy)
    def check(text: str) -> None:
        assert compiled(row.pattern).search(text)
        assert any(word in text.lower() for word in words)

    check()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("abc", {"abc"}),
        ("abcd?ef", {"abc"}),
        ("ab*cde", {"cde"}),
        (r"a\.bc|DEF", {"a.bc", "def"}),
        (r"abc|\d+", set()),
        ("(?:abc|def)+", {"abc", "def"}),
        ("(?:abc|def)?xyz", {"xyz"}),
        ("(?:abc)*", set()),
        ("(?!abc)def", {"def"}),
        ("(?=abc)", set()),
        ("[abc]def[^]x]ghi", {"def"}),
        ("abc+def", {"abc"}),
        ("error 12 xx", {"error "}),
        (r"\bnan\b", {"nan"}),
        ("(?P<n>longer|word)ab", {"longer", "word"}),
        ("ab{2}cde", {"cde"}),
        ("xy", set()),
    ],
)  # fmt: skip
def test_the_words_that_a_pattern_requires(pattern: str, words: set[str]) -> None:
    assert required_words(pattern) == words


@few
@given(st.text())
def test_no_text_breaks_the_table_and_the_answer_is_always_the_same(text: str) -> None:
    table = default_table()
    assert table.find(text) == table.find(text)
    assert table.find(text, exception=True) == table.find(text, exception=True)


@few
@given(st.binary(max_size=200))
def test_the_quick_test_of_a_line_never_hides_a_finding(raw: bytes) -> None:
    table = default_table()
    if not table.may_fit(raw):
        assert table.find(raw.decode("utf-8", "replace")) is None


def test_a_line_that_differs_in_digits_only_is_looked_at_anew() -> None:
    table = Table([rule("a", "", xid=(13,)), rule("b", "", xid=(31,))])
    line = "NVRM: Xid (PCI:0000:1b:00): %d, pid=9"
    assert [row and row.name for row in (table.find(line % n) for n in (13, 31, 45))] == ["a", "b", None]


def test_the_first_row_that_fits_decides_and_both_xid_and_pattern_must_fit() -> None:
    table = Table([rule("fatal", "fatal", xid=(145,)), rule("any", "", xid=(145,)), rule("late", "fatal")])
    found = [
        table.find(f"NVRM: Xid (PCI:0018:01:00): {text}") for text in ("145, Fatal", "145, x", "9, fatal")
    ]
    assert [row and row.name for row in found] == ["fatal", "any", "late"]


def test_a_rule_without_any_word_is_tried_on_every_line() -> None:
    table = Table([rule("number", r"\b\d{3}\b"), rule("word", "leaf")])
    assert [row and row.name for row in map(table.find, ("x 123", "leaf", "12"))] == ["number", "word", None]


@pytest.mark.parametrize(
    ("severity", "blame", "drain", "drains"),
    [
        ("SEV1", Blame.NODE, None, True),
        ("SEV1", Blame.NODE, False, False),
        ("SEV1", Blame.NETWORK, None, False),
        ("SEV2", Blame.NODE, None, False),
        ("SEV2", Blame.NODE, True, True),
    ],
)
def test_a_node_is_drained_when_it_is_out_and_to_blame_or_when_the_rule_says_so(
    severity: str, blame: Blame, drain: bool | None, drains: bool
) -> None:
    assert rule("a", "leaf", severity=severity, blame=blame, drain=drain).drains is drains


def test_rows_for_exceptions_leave_other_lines_alone() -> None:
    progress = "the last request timed out, trying again"
    assert default_table().find(progress) is None
    row = default_table().find(f"TimeoutError: {progress}", exception=True)
    assert row is not None
    assert row.error == "timeout"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("slurmstepd: error: *** STEP 608.0 ON c1 CANCELLED AT 2025-03-03T10:00:00 ***", "cancelled"),
        ("slurmstepd: error: *** JOB 608 ON c1 CANCELLED AT 2025-03-03T10:00:00 ***", "cancelled"),
        (
            "slurmstepd: error: *** JOB 608 ON c1 CANCELLED AT 2025-03-03T10:00:00 DUE to SIGNAL Killed ***",
            "cancelled",
        ),
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=608.0. Some of your processes may "
            "have been killed by the cgroup out-of-memory handler.",
            "host out of memory",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=608.0.", "host out of memory"),
        ("srun: error: node1: task 2: Out Of Memory", "host out of memory"),
        ("srun: error: node1: task 2: Exited with exit code 137", "exited with an exit code"),
        ("srun: error: Node failure on node1", "node failed"),
        ("srun: First task exited 60s ago", "step ends"),
    ],
)
def test_slurms_lines_are_known_in_the_spellings_of_its_versions(line: str, error: str) -> None:
    found = default_table().find(line)
    assert found is not None
    assert found.error == error


@pytest.mark.parametrize(
    ("name", "error", "severity"),
    [
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "CUDA error", "SEV2"),
        ("ncclSystemError: System call (e.g. socket, malloc) failed", "NCCL system error", "SEV3"),
        ("ncclInternalError: Internal check failed.", "NCCL internal error", "SEV3"),
        ("ncclInvalidArgument: Invalid value for an argument.", "NCCL called wrongly", "PROGRAM"),
        ("ncclInvalidUsage: This usually reflects invalid usage", "NCCL called wrongly", "PROGRAM"),
        ("ncclRemoteError: A call failed possibly due to a network error", "NCCL remote error", "SEV3"),
        ("ncclInProgress", "NCCL not ready", "SEV3"),
    ],
)
def test_every_result_of_nccl_is_known_by_its_name(name: str, error: str, severity: str) -> None:
    for text in (name, f"torch.distributed.DistBackendError: NCCL error in: x.cpp:1970, {name}"):
        found = default_table().find(text, exception=True)
        assert found is not None
        assert (found.error, found.severity) == (error, severity)


@pytest.mark.parametrize(
    "line",
    [
        " iteration 100/ 500 | lm loss: 2.1E+00 | grad norm: 1.0 | number of nan iterations:   0 |",
        "NCCL_ASYNC_ERROR_HANDLING=1 NCCL_TIMEOUT=600",
        "timeout ............................ 600",
        "loss: 0.5, information follows",
        "using world size: 8, data-parallel size: 2, nan_check: True",
        "saved checkpoint in 3.2 s, no errors found",
        "INFO: fault tolerance is enabled",
        "loading data from /data/infinite-loss.bin",
        "",
        "nccl timeout set to 1800s; retry on connection reset enabled",
        "NCCL timeout is 1800 s",
        "setting NCCL timeout to 600 seconds",
        "NCCL async timeout handling enabled",
    ],
)
def test_what_a_healthy_training_prints_is_no_finding(line: str) -> None:
    assert default_table().find(line) is None


def test_site_rules_come_first_and_take_the_place_of_a_row_of_their_name() -> None:
    table = default_table().with_rules([rule("xid-page-fault", "", xid=(31,), severity="SEV1")])
    line = "NVRM: Xid (PCI:0000:1b:00): 31, pid=99, name=python, Ch 00000008, MMU Fault"
    found = table.find(line)
    assert found is not None
    assert found.finding.severity is Severity.SEV1
    assert len(table.rows) == len(ROWS)

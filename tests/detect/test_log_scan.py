"""What the lines of a log mean, and which of several ranks' errors was first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detect.field_cases import CASES
from unicron_hpc.detect import log_scan
from unicron_hpc.detect.log_places import Place, place_in_name, tasks_in
from unicron_hpc.detect.log_scan import LogFinding, LogScan
from unicron_hpc.detect.log_verdict import Story, tell
from unicron_hpc.detect.tracebacks import Raised, Traceback

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
PEER = "RuntimeError: [/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41"
HEAD = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    step()\n'
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def scan(text: str, file: str = "run.log", year: int = 2025) -> list[LogFinding]:
    scanner = LogScan(file, place_in_name(file), year)
    for number, line in enumerate(text.split("\n"), start=1):
        scanner.feed(line.encode(), number)
    return scanner.finish()


def story(**logs: str) -> Story:
    return tell([finding for name, text in logs.items() for finding in scan(text, f"{name}.log")])


def cause(told: Story) -> LogFinding | None:
    return None if told.first_cause is None else told.findings[told.first_cause]


@pytest.mark.parametrize(
    ("case_id", "expected"),
    [
        ("log_line-01", {"xid": 79, "pci": "0000:44:00"}),
        ("log_line-15", {"xid": None, "pci": "0000:b3:00.0"}),
        ("log_line-17", {"rank": 1, "sequence": 158046}),
        ("log_line-19", {"rank": 3}),
        ("log_line-23", {"peer": "10.0.0.1", "host": "node3"}),
        ("log_line-39", {"host": "worker-1"}),
        ("log_line-41", {"host": "node1", "tasks": (0, 1, 2, 3), "exit_code": 1}),
        ("log_line-43", {"host": "cn106"}),
        ("log_line-47", {"peer": "node0"}),
    ],
)
def test_a_finding_carries_what_its_line_tells(case_id: str, expected: dict[str, object]) -> None:
    (finding,) = scan(CASES[case_id]["input"])
    assert {key: getattr(finding, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "unicron_hpc.supervisor.losses: node n3 is lost: no heartbeat for 2.2 s",
            ("lost connection", "n3", None),
        ),
        (
            "unicron_hpc.supervisor.incidents: incident 4: killed (SIGKILL) on n2 (rank 1)",
            ("killed (SIGKILL)", "n2", 1),
        ),
        (
            "unicron_hpc.supervisor.incidents: incident 6: rank stopped on n4 (rank 3)",
            ("rank does not answer", "n4", 3),
        ),
    ],
)
def test_the_logs_of_our_own_agents_name_node_and_rank(line: str, expected: tuple[object, ...]) -> None:
    (finding,) = scan(f"2025-03-03 10:00:00,123 WARNING {line}", "agent-n1.log")
    assert (finding.rule.error, finding.host, finding.rank) == expected


@pytest.mark.parametrize("case_id", [key for key, case in CASES.items() if case["kind"] == "log_line"])
def test_every_line_from_the_field_is_one_finding(case_id: str) -> None:
    assert len(scan(CASES[case_id]["input"])) == 1


def test_a_traceback_is_one_finding_at_its_last_line_with_its_text() -> None:
    more = "\nCUDA kernel errors might be asynchronously reported at some other API call\nnot of it"
    (finding,) = scan(HEAD + ECC + more)
    assert (finding.line, finding.line_number, finding.rule.error) == (ECC, 4, "ECC error")
    assert finding.text.splitlines()[1].startswith("CUDA kernel errors")
    assert "not of it" not in finding.text


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[rank3]: ",
        "3: ",
        "2025-03-03 10:00:00 ",
        "w-1: [rank3]: ",
        "(Worker pid=4, ip=10.0.0.3) ",
        "stderr F ",
    ],
)
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HEAD + ECC + CAUSED + HEAD + "StepError: step failed", ECC),
        (HEAD + "KeyError: 'a'" + HANDLING + HEAD + "ValueError: b", "KeyError: 'a'"),
        (HEAD + PEER + HANDLING + HEAD + ECC, ECC),
        (HEAD + PEER + CAUSED + HEAD + "ValueError: b", PEER),
        (HEAD + "A: a" + CAUSED + HEAD + "B: b" + CAUSED + HEAD + "C: c", "A: a"),
        (HEAD + "mine.StrangeError", "mine.StrangeError"),
    ],
)
def test_of_a_chain_the_root_is_told(prefix: str, text: str, line: str) -> None:
    (finding,) = scan("\n".join(prefix + part for part in text.split("\n")))
    assert finding.line.removeprefix(prefix) == line


def test_tracebacks_of_ranks_whose_lines_are_mixed_are_told_apart() -> None:
    first = [f"[rank0]: {line}" for line in (HEAD + "ValueError: a").split("\n")]
    second = [f"[rank1]: {line}" for line in (HEAD + "KeyError: 'b'").split("\n")]
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    assert [(f.rank, f.text) for f in scan("\n".join(mixed))] == [(0, "ValueError: a"), (1, "KeyError: 'b'")]


@pytest.mark.parametrize(
    "before", ["worker-{}: ", "worker-{0}: [rank{0}]: ", "(Worker pid={}, ip=10.0.0.3) "]
)
def test_tracebacks_behind_what_an_unknown_launcher_writes_are_told_apart(before: str) -> None:
    first = [before.format(0) + line for line in (HEAD + "ValueError: a").split("\n")]
    second = [before.format(1) + line for line in (HEAD + "KeyError: 'b'").split("\n")]
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    assert [f.text for f in scan("\n".join(mixed))] == ["ValueError: a", "KeyError: 'b'"]


def test_what_a_progress_bar_left_before_a_traceback_is_not_taken_for_a_launchers() -> None:
    lines = ("Epoch 0: 34%|##| 101/300 [00:12]" + HEAD + "ValueError: a").split("\n")
    assert [f.text for f in scan("\n".join(lines))] == ["ValueError: a"]


def test_a_launchers_traceback_that_was_cut_off_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scan, "_SILENCE", 3)
    head = [f"worker-1: {line}" for line in HEAD.split("\n")[:2]]
    assert scan("\n".join([*head, *["step"] * 4, "worker-1: ValueError: a"])) == []
    assert len(scan("\n".join([*head, *["step"] * 2, "worker-1: ValueError: a"]))) == 1


def test_times_without_a_year_do_not_lie_after_the_end_of_the_log() -> None:
    scanner = LogScan("kern.log", year=2026, latest=1767312000.0)  # 2 January 2026
    record = "{} n{} kernel: " + CASES["log_line-01"]["input"]
    scanner.feed(record.format("Dec 31 23:59:59", 1).encode(), 1)
    scanner.feed(record.format("Jan  1 00:00:01", 2).encode(), 2)
    first, second = (finding.time or 0.0 for finding in scanner.finish())
    assert second - first == 2.0


def test_a_traceback_has_the_time_at_which_it_began() -> None:
    raised = [f"[rank2]: {line}" for line in (HEAD + "ValueError: a").split("\n")]
    (finding,) = scan("\n".join(["2025-03-03 10:00:00 step", *raised, "2025-03-03 11:00:00 step"]))
    assert finding.time == 1740996000.0


def test_lines_of_others_inside_a_traceback_are_findings_of_their_own() -> None:
    record = CASES["log_line-01"]["input"]
    lines = (HEAD + "ValueError: a").split("\n")
    found = scan("\n".join([*lines[:2], record, *lines[2:]]))
    assert [finding.rule.name for finding in found] == ["xid-fallen-off", "program-exception"]


def test_an_exceptions_text_is_kept_to_some_lines() -> None:
    (finding,) = scan(HEAD + ECC + "\n  more" * 500)
    assert 10 < len(finding.text.splitlines()) < 50


def test_colours_between_the_letters_of_a_word_do_not_hide_it() -> None:
    (finding,) = scan(ECC.replace("uncorrectable E", "uncorrec\x1b[1mtable\x1b[0m E"))
    assert (finding.rule.error, finding.line) == ("ECC error", ECC)


def test_a_group_of_exceptions_is_read() -> None:
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "a.py", line 1, in <module>\n'
        "  |     x: int = f()\n"
        "  | ExceptionGroup: two (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "a.py", line 2, in f\n'
        "    | ValueError: a\n"
        "    +------------------------------------"
    )
    assert "ValueError: a" in [finding.text for finding in scan(group)]


def test_a_traceback_that_is_cut_off_is_no_finding() -> None:
    assert scan(HEAD) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([*HEAD.split("\n"), ECC, PEER, CAUSED.strip(), HANDLING.strip(), "", "x"])))
def test_a_traceback_machine_takes_any_lines_and_invents_none(lines: list[str]) -> None:
    machine, raised = Traceback(), list[Raised]()
    for number, line in enumerate(lines):
        raised += machine.feed(line, number)[1]
    raised += machine.finish()
    assert all(exception.line == lines[exception.number] for exception in raised)
    assert not machine.open


def test_ncclls_information_and_stacks_are_no_findings() -> None:
    assert scan("n1:9:9 [0] NCCL INFO [Service thread] Connection closed by localRank 0, timed out") == []
    assert scan("frame #3: c10d::ProcessGroupNCCL: CUDA error: x (0x1 in lib.so)") == []


def test_a_line_that_comes_often_is_counted() -> None:
    (finding,) = scan("\n".join(["x", CASES["log_line-23"]["input"], "y"] * 50))
    assert (finding.count, finding.line_number, finding.last_line_number) == (50, 2, 149)


def test_a_log_of_nothing_but_different_errors_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scan, "MOST_FINDINGS", 20)
    scanner = LogScan("run.log")
    for number in range(27):
        scanner.feed(f"[rank{number}]: ValueError: a".encode(), number)
    assert (len(scanner.finish()), scanner.left_out) == (20, 7)


def test_a_line_without_a_time_has_the_time_of_the_line_before() -> None:
    (finding,) = scan(f"2025-03-03 10:00:00 INFO start\nx\n{ECC}")
    assert finding.time is not None
    assert finding.time % 86400 == 10 * 3600


def test_torchruns_report_names_the_rank_and_its_end() -> None:
    report = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2025-03-03_10:00:00\n  host      : node1\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 12345)\n  error_file: <N/A>"
    )
    (finding,) = scan(report)
    assert (finding.rank, finding.host, finding.rule.error) == (3, "node1", "killed (SIGKILL)")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("logs/rank-3.log", Place(3)),
        ("logs/rank_12.out.gz", Place(12)),
        ("run/rank3/stderr", Place(3)),
        ("/tmp/x/attempt_0/7/stderr.log", Place(7)),
        ("logs/rank-n1-0.log", Place(None, "n1")),
        ("logs/rank-gpu-07-3.log", Place(None, "gpu-07")),
        ("logs/agent-n1.log", Place(None, "n1")),
        ("dmesg-gpu07.txt", Place(None, "gpu07")),
        ("slurm-4711.out", Place()),
        ("frank3.log", Place()),
    ],
)
def test_a_files_name_tells_rank_and_host(name: str, place: Place) -> None:
    assert place_in_name(name) == place


@pytest.mark.parametrize(
    ("tasks", "numbers"),
    [("3", (3,)), ("0-2,7", (0, 1, 2, 7)), ("0-999999999999", ()), ("-", ()), ("0-" + "9" * 30, ())],
)
def test_lists_of_tasks_are_spelled_out(tasks: str, numbers: tuple[int, ...]) -> None:
    assert tasks_in(f"srun: error: n1: tasks {tasks}: Killed") == numbers


# ---------------------------------------------------------------- several logs


def test_the_cause_in_one_ranks_log_is_told_from_the_complaints_in_the_others() -> None:
    told = story(
        rank0=f"2025-03-03 10:00:01 {PEER}",
        rank1=f"2025-03-03 10:00:03 {PEER}",
        rank3=f"2025-03-03 10:00:02 {ECC}",
    )
    found = cause(told)
    assert found is not None
    assert (found.rank, found.rule.error) == (3, "ECC error")
    assert told.consequences == {0, 2}
    assert [finding.rank for finding in told.findings] == [0, 3, 1]


def test_of_two_causes_the_earlier_is_the_first_whatever_the_order_of_the_files() -> None:
    early, late = f"2025-03-03 10:00:01 {ECC}", "2025-03-03 10:00:02 ValueError: a"
    for told in (story(rank0=late, rank1=early), story(rank1=early, rank0=late)):
        found = cause(told)
        assert found is not None
        assert found.rank == 1


def test_exit_codes_after_the_cause_are_its_consequences() -> None:
    told = story(run=f"{ECC}\nsrun: error: node1: tasks 0-3: Exited with exit code 1")
    assert (told.first_cause, told.consequences) == (0, {1})


def test_an_exit_code_alone_is_the_cause_as_far_as_one_can_tell() -> None:
    assert story(run="srun: error: node1: task 0: Exited with exit code 1").first_cause == 0


def test_complaints_alone_have_no_cause() -> None:
    told = story(rank0=PEER, rank1=PEER)
    assert told.first_cause is None
    assert told.consequences == {0, 1}


def test_an_end_without_a_reason_after_complaints_is_their_consequence() -> None:
    told = story(run=CASES["log_line-17"]["input"] + "\nFatal Python error: Aborted")
    assert (told.first_cause, told.consequences) == (None, {0, 1})


def test_a_kill_after_the_cancellation_follows_from_it_and_one_before_it_does_not() -> None:
    cancelled, killed = CASES["log_line-35"]["input"], "srun: error: n1: task 0: Killed"
    assert story(run=f"{cancelled}\n{killed}").first_cause is None
    assert story(run=f"{killed}\n{cancelled}").first_cause == 0


def test_the_same_failure_of_the_same_node_again_is_a_consequence() -> None:
    lost = [CASES["log_line-39"]["input"], CASES["log_line-33"]["input"]]
    told = story(run=lost[0] + "\n" + lost[1].replace("c2", "worker-1"))
    assert (told.first_cause, told.consequences) == (0, {1})
    assert story(run="\n".join(lost)).consequences == set()


def test_the_rank_that_lags_behind_is_suspected() -> None:
    line = CASES["log_line-17"]["input"]
    behind = line.replace("158046", "158045").replace("ank 1", "ank 2").replace("rank1", "rank2")
    told = story(a=line, b=behind, c=line.replace("ank 1", "ank 3").replace("rank1", "rank3"))
    assert told.verdict.suspects == (2,)


def test_what_fails_after_the_time_limit_without_a_reason_is_its_consequence() -> None:
    limit = "slurmstepd: error: *** JOB 608 ON c1 CANCELLED AT 2025-03-03T10:00:00 DUE TO TIME LIMIT ***"
    after = f"{limit}\n{PEER}\nsrun: error: node1: task 0: Exited with exit code 1"
    found = cause(story(run=after))
    assert found is not None
    assert found.rule.error == "time limit reached"
    found = cause(story(run=f"{ECC}\n{after}"))
    assert found is not None
    assert found.rule.error == "ECC error"


def test_warnings_are_neither_cause_nor_consequence() -> None:
    told = story(run=CASES["log_line-13"]["input"])
    assert (told.first_cause, told.consequences) == (None, frozenset())


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_break_the_scan(raw: bytes) -> None:
    scanner = LogScan("garbage.log")
    for number, line in enumerate(raw.split(b"\n"), start=1):
        scanner.feed(line, number)
    told = tell(scanner.finish())
    assert told.first_cause is None or told.findings[told.first_cause].rule.severity != "INFO"


TEXTS = st.sampled_from(
    [ECC, PEER, "x", "ValueError: a", *(c["input"] for c in CASES.values() if c["kind"] == "log_line")]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, max_size=8))
def test_a_first_cause_is_a_failure_and_no_consequence(lines: list[str]) -> None:
    told = tell(scan("\n".join(lines)))
    if told.first_cause is not None:
        assert told.first_cause not in told.consequences
        assert not told.findings[told.first_cause].rule.collateral

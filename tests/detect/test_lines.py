"""Excerpts of logs of every make: what failed is told, and what only looks alarming is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unicron_hpc.detect.log_places import place_in_name
from unicron_hpc.detect.log_scan import LogScan
from unicron_hpc.detect.log_verdict import Story, tell

_FOLDER = Path(__file__).parent / "lines"


def excerpts(name: str) -> Iterator[tuple[str, str, str]]:
    """Name, what is expected, and text of every excerpt in a file of `lines/`."""
    for block in (_FOLDER / f"{name}.txt").read_text("utf-8").split("\n## ")[1:]:
        head, _, text = block.partition("\n")
        title, _, expected = head.partition(" :: ")
        yield title, expected, text.removesuffix("\n")


FAILING = list(excerpts("failing"))
HEALTHY = list(excerpts("healthy"))


def told(**logs: str) -> Story:
    findings = []
    for name, text in logs.items():
        scanner = LogScan(f"{name}.log", place_in_name(f"{name}.log"), 2025)
        for number, line in enumerate(text.split("\n"), start=1):
            scanner.feed(line.encode(), number)
        findings += scanner.finish()
    return tell(findings)


def verdict(story: Story) -> str:
    if story.first_cause is not None:
        rule = story.findings[story.first_cause].rule
        return f"{rule.severity} {rule.blame.value}"
    severities = {finding.rule.severity for finding in story.findings}
    if not severities:
        return "none"
    return "INFO" if severities == {"INFO"} else "symptom"


@pytest.mark.parametrize(("expected", "text"), [row[1:] for row in FAILING], ids=[row[0] for row in FAILING])
def test_what_failed_is_told_with_its_severity_and_blame(expected: str, text: str) -> None:
    assert verdict(told(run=text)) == expected


@pytest.mark.parametrize("text", [row[2] for row in HEALTHY], ids=[row[0] for row in HEALTHY])
def test_what_only_looks_alarming_is_no_failure(text: str) -> None:
    assert verdict(told(run=text)) in {"none", "INFO"}


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    step()\n'
REPORT = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2025-03-03_10:00:00\n  host      : n7\n"
    "  rank      : 12 (local_rank: 4)\n  exitcode  : {} (pid: 4121)\n  error_file: x\n  traceback : {}\n====="
)


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "worker-1: "])
def test_a_real_traceback_after_one_that_was_ignored_is_told(prefix: str) -> None:
    ignored = f"Exception ignored in: <function f>\n{TRACEBACK}AssertionError: can only test a child process"
    lines = [f"{prefix}{line}" for line in ignored.split("\n")]
    assert told(run="\n".join(lines * 2)).findings == ()
    lines += [f"{prefix}{line}" for line in f"{TRACEBACK}ValueError: a".split("\n")]
    (finding,) = told(run="\n".join(lines)).findings
    assert finding.text == "ValueError: a"


def test_a_traceback_of_one_rank_is_not_ignored_because_of_another_ranks() -> None:
    lines = f"[rank1]: Exception ignored in: <f>\n{TRACEBACK}ValueError: a".split("\n")
    text = "\n".join([lines[0], *(f"[rank0]: {line}" for line in lines[1:])])
    assert [finding.rank for finding in told(run=text).findings] == [0]


def test_an_error_of_the_logging_module_is_ignored() -> None:
    assert (
        told(run=f"--- Logging error ---\n{TRACEBACK}TypeError: not all arguments converted").findings == ()
    )


def test_of_two_tracebacks_in_a_row_each_has_its_own_time() -> None:
    lines = [f"2025-03-03 10:00:01 {line}" for line in f"{TRACEBACK}ValueError: a".split("\n")]
    lines += [f"2025-03-03 10:00:02 {line}" for line in f"{TRACEBACK}KeyError: 'b'".split("\n")]
    first, second = told(run="\n".join(lines)).findings
    assert (second.time or 0.0) - (first.time or 0.0) == 1.0


def test_a_traceback_inside_torchruns_report_is_the_cause_of_the_rank_that_is_named() -> None:
    handling = "During handling of the above exception, another exception occurred:"
    inside = f"{TRACEBACK}ConnectionResetError: gone\n\n{handling}\n\n{TRACEBACK}ValueError: a"
    told_by_report = told(run=REPORT.format(1, inside.replace("\n", "\n  ")) + "\nKeyError: 'b'")
    report, after = told_by_report.findings
    assert (report.text, report.rank, report.host) == ("ValueError: a", 12, "n7")
    assert after.text == "KeyError: 'b'"


def test_a_report_without_a_traceback_ends_where_it_ends() -> None:
    story = told(
        run=REPORT.format(-11, "Signal 11 (SIGSEGV) received by PID 4121") + f"\n{TRACEBACK}ValueError: a"
    )
    assert [finding.rank for finding in story.findings] == [12, None]


@pytest.mark.parametrize(("status", "name"), [(-9, "killed"), (-11, "crashed")])
def test_who_names_the_rank_of_the_same_end_is_the_cause(status: int, name: str) -> None:
    launcher = (
        f"E0303 10:00:00.0 22 api.py:869] failed (exitcode: {status}) local_rank: 4 (pid: 4121) of binary: x"
    )
    story = told(run=f"{launcher}\n{REPORT.format(status, 'Signal received by PID 4121')}")
    assert story.first_cause == 1
    cause = story.findings[1]
    assert (cause.rank, cause.rule.error.startswith(name)) == (12, True)
    assert story.consequences == {0}


def test_what_a_rerun_finds_goes_before_the_value_that_was_not_expected() -> None:
    unexpected = "ERROR:megatron:Unexpected result nan on rank 3 at iteration #3 (message='x')"
    found = "ERROR:megatron:Rank 3, node n7, device 3, iteration #3: Possible persistent error!"
    assert verdict(told(run=unexpected)) == "PROGRAM program"
    assert verdict(told(run=f"{unexpected}\n{found}")) == "SEV1 node"


@pytest.mark.parametrize("text", ["RuntimeError: something of our own", "mine.StrangeError", "Exception: no"])
def test_an_exception_that_no_row_explains_is_told_without_its_traceback_too(text: str) -> None:
    (finding,) = told(run=f"step 1\n[rank3]: {text}\nstep 2").findings
    assert (finding.rule.name, finding.rank) == ("exception-other", 3)


def test_mpirun_names_rank_and_node() -> None:
    line = "mpirun noticed that process rank 3 with PID 0 on node n2 exited on signal 9 (Killed)."
    (finding,) = told(run=line).findings
    assert (finding.rank, finding.host) == (3, "n2")


def test_a_kill_by_the_kernel_goes_before_the_worker_that_it_killed() -> None:
    killed = f"{TRACEBACK}RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed."
    assert verdict(told(run=killed)) == "SEV2 program"
    kernel = "Out of memory: Killed process 77 (python3) total-vm:1kB, anon-rss:1kB"
    assert verdict(told(run=f"{killed}\n{kernel}")) == "PROGRAM program"


def test_a_cause_that_comes_late_in_a_mixed_log_is_told_from_the_complaints_before_it() -> None:
    lost = "DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error"
    cause = f"{TRACEBACK}RuntimeError: CUDA error: an illegal memory access was encountered"
    lines = [f"{rank}: {line}" for rank in (0, 1) for line in f"{TRACEBACK}{lost}".split("\n")]
    lines += [f"3: \x1b[31m{line}\x1b[0m" for line in cause.split("\n")]
    story = told(run="\r\n".join([*lines, "srun: error: n2: task 3: Exited with exit code 1"]))
    assert story.first_cause is not None
    assert (story.findings[story.first_cause].rank, verdict(story)) == (3, "SEV2 process")
    assert len(story.consequences) == len(story.findings) - 1


@pytest.mark.parametrize(
    "before",
    [
        "    ",
        "(main_task pid=4129158) ",
        "(Worker_DP0 pid=5609, ip=10.0.0.7) ERROR 06-04 12:45:50 [v1/executor/multiproc_executor.py:932] ",
        "2025-05-22 03:33:36,123 [ERROR] [trainer.py:88:fit] ",
        "2025-05-22 03:33:36 - [ERROR] - An error occurred during training: ",
    ],
)
def test_an_exception_behind_what_a_logger_puts_before_it_is_told(before: str) -> None:
    (finding,) = told(run=f"{before}ValueError: heads must be divisible by the tensor parallel size").findings
    assert finding.rule.severity == "PROGRAM"
    assert finding.text.startswith("ValueError")


def test_the_sentence_in_which_a_program_tells_why_it_ended_is_read_as_an_exception() -> None:
    text = "[ERROR] - An error occurred during training: World size 2 must be divisible by 3."
    assert verdict(told(run=text)) == "PROGRAM program"


def test_an_error_of_a_step_that_is_tried_again_is_no_failure() -> None:
    assert told(run="error occurred during training: server busy, retrying in 5 s").findings == ()


@pytest.mark.parametrize(
    ("number", "expected"),
    [(101, "PROGRAM program"), (802, "SEV1 node"), (803, "SEV2 node"), (804, "PROGRAM program")],
)
def test_the_number_that_cuda_gives_decides_before_the_words_around_it(number: int, expected: str) -> None:
    words = {101: "invalid device ordinal", 802: "system not yet initialized"}
    words |= {803: "system has unsupported display driver / cuda driver combination"}
    words |= {804: "forward compatibility was attempted on non supported HW"}
    text = f"RuntimeError: Unexpected error from cudaGetDeviceCount(). Error {number}: {words[number]}"
    assert verdict(told(run=text)) == expected

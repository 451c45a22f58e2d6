"""Reports as people and programs write them down."""

from __future__ import annotations

from typing import Any

import pytest

from unicron_hpc.detect.attribution import judge
from unicron_hpc.detect.reports import Sign
from unicron_hpc.detect.sequence import read_report, verdict_as_data
from unicron_hpc.errors import UnicronError


@pytest.mark.parametrize(
    ("entry", "sign", "error"),
    [
        ({"event": "silent"}, Sign.SILENT, "rank does not answer"),
        ({"event": "no_step_heartbeat"}, Sign.SILENT, "rank does not answer"),
        ({"event": "hang"}, Sign.SILENT, "rank does not answer"),
        ({"event": "nccl_timeout"}, Sign.FAULT, "NCCL timeout"),
        ({"event": "connection_reset"}, Sign.FAULT, "connection to a peer lost"),
        ({"event": "ecc_error"}, Sign.FAULT, "ECC error"),
        ({"event": "xid", "xid": 79, "node": "n1"}, Sign.FAULT, "GPU driver error"),
        ({"event": "node_lost", "node": "n1"}, Sign.FAULT, "lost connection"),
        ({"event": "exit", "signal": 9}, Sign.DEATH, "killed (SIGKILL)"),
        ({"event": "exit", "signal": "SIGSEGV"}, Sign.DEATH, "crashed (SIGSEGV)"),
        ({"event": "sigkill"}, Sign.DEATH, "killed (SIGKILL)"),
        ({"event": "exit", "signal": 15}, Sign.ENDED, "killed (SIGTERM)"),
        ({"event": "exit", "code": 143}, Sign.ENDED, "killed (SIGTERM)"),
        ({"event": "exit", "code": 137}, Sign.DEATH, "killed (SIGKILL)"),
        ({"event": "exit", "code": 1}, Sign.FAULT, "exited with code 1"),
        ({"event": "exit", "code": 0}, Sign.ENDED, "exited with code 0"),
        ({"event": "exit", "code": 1, "exc": "ValueError: a"}, Sign.FAULT, "error of the program"),
        ({"event": "cgroup oom_kill +1"}, Sign.MEMORY_KILL, "host out of memory"),
        ({"event": "section", "name": "checkpointing"}, Sign.SECTION, None),
        ({"event": "section_end", "name": "checkpointing"}, Sign.SECTION_OVER, None),
        ({"event": "something new"}, Sign.FAULT, None),
        ({"node": "n3"}, Sign.RESTART, None),
        ({"node": "n3", "event": "rank_restarted"}, Sign.RESTART, None),
        ({"event": "preempted"}, Sign.ENDED, "ended on request"),
        ({"event": "scancel"}, Sign.ENDED, "ended on request"),
        ({"event": "gil_held"}, Sign.SILENT, "rank does not answer"),
        ({"event": "xid", "xid": 79}, Sign.FAULT, "GPU driver error"),
        ({"event": "heartbeat_lost"}, Sign.SILENT, "rank does not answer"),
        ({"event": "heartbeat_lost", "rank": None, "node": "n1"}, Sign.SILENT, "lost connection"),
        ({"event": "sigstop"}, Sign.SILENT, "rank does not answer"),
        ({"event": "segfault"}, Sign.DEATH, "crashed (SIGSEGV)"),
        ({"event": "core dumped"}, Sign.FAULT, None),
        ({"event": "stack_dump"}, Sign.FAULT, "taken note of"),
        ({"event": "straggler"}, Sign.FAULT, "rank is slow"),
        ({"event": "job_cancelled"}, Sign.ENDED, "ended on request"),
        ({"event": "silent", "rank": "7"}, Sign.SILENT, "rank does not answer"),
        ({"event": "Xid 79"}, Sign.FAULT, "GPU driver error"),
        ({"event": "xid_79"}, Sign.FAULT, "GPU driver error"),
        ({"event": "heartbeat"}, Sign.ALIVE, None),
        ({"event": "rank_recovered"}, Sign.ALIVE, None),
        ({"event": "heartbeat_missed"}, Sign.SILENT, "rank does not answer"),
        ({"event": "section", "name": "training"}, Sign.SECTION_OVER, None),
        ({"event": "section", "name": "first_iteration"}, Sign.SECTION, None),
        ({"event": "rank_started"}, Sign.FAULT, "taken note of"),
        ({"event": "checkpoint_saved"}, Sign.FAULT, "taken note of"),
        ({"event": "never_joined"}, Sign.FAULT, None),
        ({"event": "failed_to_start"}, Sign.FAULT, None),
        ({"event": "hang_started"}, Sign.SILENT, "rank does not answer"),
        ({"event": "exit", "code": 1, "signal": 0}, Sign.FAULT, "exited with code 1"),
        ({"event": "exit", "signal": "9"}, Sign.DEATH, "killed (SIGKILL)"),
        ({"event": "exit", "signal": -9}, Sign.DEATH, "killed (SIGKILL)"),
        ({"event": "exit", "code": "0:9"}, Sign.DEATH, "killed (SIGKILL)"),
        ({"event": "exit", "code": "1:0"}, Sign.FAULT, "exited with code 1"),
        (
            {"exc": ["Traceback (most recent call last):", "  x", "KeyError: 'a'"]},
            Sign.FAULT,
            "error of the program",
        ),
        ({"Event": "exit", "exit_code": 137}, Sign.DEATH, "killed (SIGKILL)"),
    ],
)
def test_what_a_report_says(entry: dict[str, Any], sign: Sign, error: str | None) -> None:
    report = read_report({"t": 1.0, "rank": 2} | entry)
    assert (report.sign, report.finding and report.finding.error) == (sign, error)


@pytest.mark.parametrize(
    "entry",
    [
        {"signal": "SIGFOO"},
        {"rank": "two"},
        {"rank": -1},
        {"rank": float("inf")},
        {"t": float("nan")},
        {"t": float("inf")},
        {"code": 1.5},
        {"event": ["silent"]},
        {"node": 3},
        {"rank": 10**17},
        {"event": "silent", "rank": None},
        {"event": "exit", "signal": 9},
        {"rank": 1, "event": "exit", "signal": 900},
        {"t": 1.0, "who": 3, "what": "silent"},
        {"rank": 1, "exc": {"text": "a"}},
    ],
)
def test_what_is_no_report_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(UnicronError):
        read_report(entry)


def test_an_error_that_nobody_knows_is_not_called_a_silence() -> None:
    told = verdict_as_data(judge([read_report({"t": 0, "rank": 3, "event": "something new"})]))
    assert (told["suspect"], told["error"]) == ([3], "exception in a rank")


def test_what_others_call_time_rank_and_node_is_known_and_ours_goes_first() -> None:
    report = read_report({"timestamp": "3.5", "global_rank": "4", "Host": "n1", "event": "silent"})
    assert (report.time, report.rank, report.node) == (3.5, 4, "n1")
    assert read_report({"time": 9.0, "t": 1.0, "rank": 2, "event": "silent"}).time == 1.0


def test_a_watchdogs_line_tells_number_group_and_collective() -> None:
    line = "[PG ID 2 PG GUID 2 Rank 1] WorkNCCL(SeqNum=15, OpType={}, NumelIn=8, NumelOut=8, Timeout(ms)=1)"
    report = read_report({"rank": 1, "exc": line.format("ALLREDUCE")})
    assert (report.sequence, report.group, report.operation) == (15, "2", "ALLREDUCE(8)")
    # What is gathered may differ in size, and what two ranks do is not the same on both.
    assert read_report({"rank": 1, "exc": line.format("GATHER")}).operation == "GATHER()"
    assert read_report({"rank": 1, "exc": line.format("SEND")}).operation == ""

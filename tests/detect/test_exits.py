"""What the end of a rank process means."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.exits import describe_end, explain_exit, signal_of
from unicron_hpc.detect.severity import Blame, Severity

ILLEGAL = (
    "terminate called after throwing an instance of 'c10::Error'\n"
    "  what():  CUDA error: an illegal memory access was encountered\n"
)
PEER = (
    "Traceback (most recent call last):\n  File 'x', line 1\n"
    "torch.distributed.DistBackendError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer\n"
)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1"),
        (75, "lost its agent"),
        (70, "internal error, exit code 70"),
        (-signal.SIGKILL, "killed (SIGKILL)"),
        (-signal.SIGTERM, "killed (SIGTERM)"),
        (-signal.SIGSEGV, "crashed (SIGSEGV)"),
        (-signal.SIGABRT, "crashed (SIGABRT)"),
        (-signal.SIGBUS, "crashed (SIGBUS)"),
        (128 + signal.SIGKILL, "killed (SIGKILL)"),
        (128 + signal.SIGSEGV, "crashed (SIGSEGV)"),
        (255, "exited with code 255"),
        (None, "exited, status unknown"),
        (-99, "killed (signal 99)"),
    ],
)
def test_an_exit_is_named_by_how_it_came_about(status: int | None, error: str) -> None:
    assert explain_exit(status).error == error


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.none(), st.integers()))
def test_no_bare_exit_costs_a_node_or_blames_a_peer_or_the_program_but_for_its_own_limits(
    status: int | None,
) -> None:
    finding = explain_exit(status)
    limit = signal_of(status) in (signal.SIGXCPU, signal.SIGXFSZ)
    assert finding.severity is (Severity.PROGRAM if limit else Severity.SEV2)
    assert not finding.collateral


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_status_that_a_real_process_leaves_is_understood(number: signal.Signals) -> None:
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert number.name in explain_exit(ended.returncode).error


@pytest.mark.parametrize("status", [-signal.SIGKILL, 128 + signal.SIGKILL, None])
def test_a_kill_for_want_of_memory_is_the_programs_and_no_nodes(status: int | None) -> None:
    finding = explain_exit(status, memory="the counter says so")
    assert (finding.error, finding.severity, finding.blame) == (
        "host out of memory",
        Severity.PROGRAM,
        Blame.PROGRAM,
    )


@pytest.mark.parametrize("status", [-signal.SIGSEGV, -signal.SIGTERM, 1])
def test_want_of_memory_explains_no_other_end_than_the_kernels_kill(status: int) -> None:
    assert explain_exit(status, memory="somebody else was killed") == explain_exit(status)


@pytest.mark.parametrize("status", [-signal.SIGABRT, 1, 128 + signal.SIGABRT])
def test_an_end_of_its_own_doing_is_named_by_the_last_words(status: int) -> None:
    assert explain_exit(status, words=ILLEGAL).error == "illegal memory access"


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGTERM])
def test_an_end_that_came_from_outside_is_not_named_by_what_was_written_before(status: int) -> None:
    assert explain_exit(status, words=ILLEGAL) == explain_exit(status)


def test_who_died_of_a_lost_peer_needs_a_new_process_and_is_not_to_blame() -> None:
    finding = explain_exit(1, words=PEER)
    assert (finding.severity, finding.collateral) == (Severity.SEV2, True)


def test_the_cause_goes_before_what_came_of_it() -> None:
    assert explain_exit(1, words=PEER + ILLEGAL) == explain_exit(1, words=ILLEGAL)


def test_the_evidence_says_how_it_ended_what_the_system_says_and_what_to_do() -> None:
    text = describe_end(-9, core=False, memory="counter 3 -> 4", tail="step 7\n")
    how, memory, advice, last = text.splitlines()
    assert (how, memory, last) == ("ended by SIGKILL", "counter 3 -> 4", "step 7")
    assert "slurm.mem" in advice
    assert describe_end(-11, core=True, memory="", tail="") == "ended by SIGSEGV, core dumped"
    assert describe_end(3, core=False, memory="", tail=" ") == "ended with exit code 3"

"""What the end of a rank process means."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.exits import explain_exit
from unicron_hpc.detect.severity import Severity


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (0, "exited with code 0"),
        (1, "exited with code 1"),
        (-signal.SIGKILL, "killed (SIGKILL)"),
        (-signal.SIGTERM, "killed (SIGTERM)"),
        (-signal.SIGSEGV, "crashed (SIGSEGV)"),
        (-signal.SIGABRT, "crashed (SIGABRT)"),
        (-signal.SIGBUS, "crashed (SIGBUS)"),
        (None, "exited, status unknown"),
        (-99, "killed (signal 99)"),
    ],
)
def test_an_exit_is_named_by_how_it_came_about(status: int | None, error: str) -> None:
    assert explain_exit(status).error == error


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.none(), st.integers()))
def test_no_exit_costs_a_node_or_blames_the_program_or_a_peer(status: int | None) -> None:
    finding = explain_exit(status)
    assert finding.severity is Severity.SEV2
    assert not finding.collateral


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_status_that_a_real_process_leaves_is_understood(number: signal.Signals) -> None:
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert number.name in explain_exit(ended.returncode).error

"""Running commands: all they said, and no shell."""

from __future__ import annotations

import sys

import pytest

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm.commands import run


def test_output_errors_and_code_are_kept() -> None:
    done = run([sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err\\n\\n'); sys.exit(3)"])
    assert (done.stdout, done.words, done.code) == ("out\n", "err", 3)
    assert "err" in str(done.error())


def test_arguments_reach_the_command_as_they_are() -> None:
    words = ["$(reboot)", "a b", "`x`", "'", "|"]
    done = run([sys.executable, "-c", "import sys; print(sys.argv[1:])", *words])
    assert done.stdout == f"{words}\n"


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert run([sys.executable, "-c", "import os; os.write(1, b'\\xff')"]).stdout == "\ufffd"


def test_the_environment_is_the_one_given() -> None:
    done = run(
        [sys.executable, "-c", "import os; print(os.environ.get('X'), 'HOME' in os.environ)"], env={"X": "1"}
    )
    assert done.stdout == "1 False\n"


def test_a_command_that_is_missing_or_silent_is_an_error_that_names_it() -> None:
    with pytest.raises(SlurmError, match="command not found: no-such-command"):
        run(["no-such-command", "--x"])
    with pytest.raises(SlurmError, match="no answer within") as caught:
        run(
            [sys.executable, "-c", "import sys; sys.stdin.read(); import signal; signal.pause()"], timeout=0.2
        )
    assert "signal.pause" in caught.value.where
    with pytest.raises(SlurmError, match="cannot be run"):
        run(["/"])

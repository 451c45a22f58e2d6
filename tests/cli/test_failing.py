"""How commands end when something outside of them fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from unicron_hpc.cli.failing import ends_with_errors


def test_what_the_system_refuses_is_told_in_a_line_with_its_path() -> None:
    @click.command()
    @ends_with_errors
    def command() -> None:
        raise PermissionError(13, "Permission denied", "runs/train-9/train.yaml")

    done = CliRunner().invoke(command)
    assert done.exit_code == 1
    assert done.stderr.startswith("runs/train-9/train.yaml: Permission denied\n  ask its owner")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_output_that_takes_nothing_more_is_told_without_a_traceback() -> None:
    code = "from unicron_hpc.cli.main import main; main(['explain', '-'])"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=b"KeyboardInterrupt",
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"input or output: No space left on device\n"

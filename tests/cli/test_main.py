"""The group `unicron`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from unicron_hpc.cli.main import COMMANDS, LazyGroup, main

_REPOSITORY = Path(__file__).parents[2]


def test_help_lists_the_sub_commands_that_are_there() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    there = {name for name in COMMANDS if (_REPOSITORY / "unicron_hpc" / "cli" / f"{name}.py").exists()}
    assert {name for name in COMMANDS if f"\n  {name} " in result.stdout} == there


def test_a_sub_command_is_imported_only_when_it_is_used() -> None:
    code = (
        "import sys, unicron_hpc.cli.main as m\n"
        "m.main(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(_REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not any(f"'unicron_hpc.cli.{name}'" in done.stdout for name in COMMANDS)
    assert "'torch'" not in done.stdout


def test_an_unknown_sub_command_is_an_error() -> None:
    assert CliRunner().invoke(main, ["frobnicate"]).exit_code == 2
    assert isinstance(main, LazyGroup)

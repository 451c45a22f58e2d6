"""The group `unicron`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner

from unicron_hpc.cli.main import COMMANDS, LazyGroup, main
from unicron_hpc.report.telling import moment

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


def test_a_terminal_that_has_not_every_character_gets_the_rest(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").touch()
    warned = {"time": 1.0, "type": "node_warning", "epoch": 1, "node": "n1", "error": "x"}
    event = json.dumps({**warned, "evidence": "\u2192 w\u00e4rm"}) + "\n"
    (tmp_path / "events.jsonl").write_text(event)
    for words in (["events"], ["status"]):
        done = subprocess.run(
            [sys.executable, "-m", "unicron_hpc.cli.main", *words, f"{tmp_path}/"],
            env={"PYTHONPATH": str(_REPOSITORY), "PYTHONIOENCODING": "iso-8859-1", "PATH": "/nowhere"},
            capture_output=True,
            text=True,
            encoding="iso-8859-1",
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert words == ["status"] or done.stdout.endswith("n1: x: \\u2192 w\u00e4rm\n")


def test_events_of_other_days_have_their_dates(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").touch()
    noon = time.mktime((2026, 3, 1, 12, 0, 0, 0, 0, -1))
    times = [noon, noon + 1, noon + 86400, time.time()]
    lines = [
        json.dumps({"time": when, "type": "plans_ready", "epoch": 1, "plans": 1, "seconds": 1})
        for when in times
    ]
    (tmp_path / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    told = CliRunner().invoke(main, ["events", str(tmp_path)]).output.splitlines()
    today = time.strftime("%Y-%m-%d")
    assert [line for line in told if "[" not in line] == ["2026-03-01", "2026-03-02", today]
    assert [told.index(day) for day in ("2026-03-01", "2026-03-02", today)] == [0, 3, 5]
    as_json = CliRunner().invoke(main, ["events", "--json", str(tmp_path)]).output.splitlines()
    assert [json.loads(line)["time"] for line in as_json] == times
    (tmp_path / "events.jsonl").write_text(f"{lines[-1]}\n")
    assert len(CliRunner().invoke(main, ["events", str(tmp_path)]).output.splitlines()) == 1


def test_a_moment_has_its_day_unless_that_is_today() -> None:
    assert moment(time.mktime((2026, 3, 1, 7, 5, 9, 0, 0, -1))) == "2026-03-01 07:05:09"
    now = time.time()
    assert moment(now) == time.strftime("%H:%M:%S", time.localtime(now))

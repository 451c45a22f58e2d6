"""unicron-sbatch as its users see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.config.settings_text import VALID
from unicron_hpc.cli.passed_on import sort_out
from unicron_hpc.cli.sbatch import main
from unicron_hpc.errors import ConfigError

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid train.yaml in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    (tmp_path / "corpus.txt").write_text("text")
    file = tmp_path / "train.yaml"
    file.write_text(VALID.replace("/data/corpus.txt", "corpus.txt"))
    return file


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_a_dry_run_prints_the_script_and_touches_nothing(train: Path) -> None:
    before = sorted(train.parent.rglob("*"))
    result = _run(
        "--dry-run", "--set", "slurm.spares=2", train, "--time=5:00", "--some-new-option=3", "--hold"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("#!/bin/bash\n")
    assert {"#SBATCH --nodes=6", "#SBATCH --time=5:00", "#SBATCH --hold"} <= set(result.stdout.splitlines())
    assert sorted(train.parent.rglob("*")) == before


def test_a_dry_run_in_json(train: Path) -> None:
    told = json.loads(_run("--dry-run", "--json", train).stdout)
    assert told["script"].startswith("#!/bin/bash\n")
    assert told["run_dir"] == str(train.parent / "runs")


def test_a_dry_run_needs_neither_torch_nor_megatron_nor_slurm(train: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'megatron', 'zmq', 'scipy'): sys.modules[name] = None\n"
        "from unicron_hpc.cli.sbatch import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--dry-run", str(train)],
        env={"PATH": "/nonexistent", "PYTHONPATH": str(_REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n")


def test_the_example_of_the_repository_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_REPOSITORY)
    result = _run("--dry-run", "templates/gpt-tiny.yaml")
    assert result.exit_code == 0, result.output
    assert "#SBATCH --nodes=5\n" in result.stdout


def test_the_example_in_the_help_is_valid(train: Path) -> None:
    text = _run("--help").stdout.partition("A small TRAIN.YAML:\n")[2].partition("docs/config.md")[0]
    train.write_text(text)
    assert _run("--dry-run", train).exit_code == 0
    assert "Exit codes:" in _run("-h").stdout


def test_every_mistake_goes_to_stderr_with_exit_code_2(train: Path) -> None:
    train.write_text(
        train.read_text().replace("nodes: 4", "nodez: 4").replace("hidden_size: 64", "hidden_size: 6")
    )
    result = _run(train)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{train}:3:3: slurm.nodez: unknown key\n  did you mean `nodes`?" in result.stderr
    assert f"{train}:7:16: hidden_size 6 does not divide" in result.stderr
    assert not (train.parent / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no train.yaml given"),
        (["a.yaml", "b.yaml"], "sbatch's options need an equals sign"),
        (["-p", "debug", "a.yaml"], "need their long names"),
        (["--array=1-3", "a.yaml"], "job arrays are not supported"),
        (["--time", "a.yaml"], "write --time=VALUE"),
        (["--Bad=1", "a.yaml"], "unknown option"),
        (["missing.yaml"], "no such file"),
    ],
)
def test_a_wrong_command_line_is_explained(train: Path, words: list[str], message: str) -> None:
    result = _run(*words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_option_of_sbatchs_is_checked_like_a_setting_and_named_itself(train: Path) -> None:
    result = _run(train, "--time=soon")
    assert result.exit_code == 2
    assert "--time=soon: slurm.time: 'soon' is not a Slurm time" in result.stderr


def test_options_that_settings_know_are_told_from_others() -> None:
    found = sort_out(["--time=5:00", "--exclusive", "t.yaml", "--cpus-per-task=2", "--brand-new"])
    assert found.file == "t.yaml"
    assert [(o.path, o.text) for o in found.overrides] == [
        (("slurm", "time"), "5:00"),
        (("slurm", "exclusive"), "true"),
        (("slurm", "cpus_per_task"), "2"),
    ]
    assert found.passed_on == ("--brand-new",)
    with pytest.raises(ConfigError):
        sort_out(["--cpus-per-task", "2", "t.yaml"])


def test_a_machine_without_slurm_gets_a_hint_and_exit_code_1(train: Path) -> None:
    result = _run(train)
    assert result.exit_code == 1
    assert "--cluster local" in result.stderr
    assert "Traceback" not in result.output


def test_a_run_dir_that_cannot_be_made_is_an_error_of_the_input(
    train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (train.parent / "taken").touch()
    (train.parent / "sbatch").write_text("#!/bin/sh\nexit 9\n")
    (train.parent / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(train.parent))
    result = _run("--set", "run_dir=taken/runs", train)
    assert result.exit_code == 2
    assert "cannot write to run_dir" in result.stderr


def test_a_closed_pipe_ends_quietly(train: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "unicron_hpc.cli.sbatch", "--dry-run", str(train)],
        env={"PATH": "/nonexistent", "PYTHONPATH": str(_REPOSITORY)},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr

"""unicron-sbatch as its users see it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.config.settings_text import VALID
from unicron_hpc.cli.passed_on import sort_out
from unicron_hpc.cli.sbatch import main
from unicron_hpc.config import Settings, load_resolved
from unicron_hpc.errors import ConfigError
from unicron_hpc.runtime.manifest import write_manifest

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


_OPEN = ("micro_batch_size", "pipeline_model_parallel_size")


class TestWhatTheFileLeavesOpen:
    """`unicron-sbatch` chooses sizes that must stay, says so, and writes them into the run folder."""

    @pytest.fixture
    def submit(self, train: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, Settings]]:
        """Submits to a Slurm that takes every job."""
        folder = train.parent / "bin"
        folder.mkdir()
        for name, answer in {"sbatch": "echo 7", "scontrol": "exit 1", "sinfo": "exit 1"}.items():
            (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")

        def submitted(*words: str) -> tuple[Result, Settings]:
            shutil.rmtree(train.parent / "runs" / "tiny-7", ignore_errors=True)
            result = _run(*words, train)
            assert result.exit_code == 0, result.output
            return result, load_resolved(train.parent / "runs" / "tiny-7")

        return submitted

    def test_is_chosen_told_and_noted_in_the_run_folder(
        self, submit: Callable[..., tuple[Result, Settings]]
    ) -> None:
        open_sizes = [
            f"--set=train.{key}=auto" for key in ("micro_batch_size", "pipeline_model_parallel_size")
        ]
        result, settings = submit("--set=slurm.ranks_per_node=2", *open_sizes)
        train = settings.train
        assert train.micro_batch_size is not None
        assert train.tensor_model_parallel_size is not None
        assert train.pipeline_model_parallel_size is None  # chosen at the start, for the nodes that came
        assert (
            f"the planner chose tensor_model_parallel_size {train.tensor_model_parallel_size}, "
            f"micro_batch_size {train.micro_batch_size}, a start with " in result.stderr
        )
        assert result.stdout.startswith("Submitted batch job 7\n")

    def test_is_nothing_where_all_is_given(self, submit: Callable[..., tuple[Result, Settings]]) -> None:
        result, settings = submit()
        assert (settings.train.micro_batch_size, settings.train.pipeline_model_parallel_size) == (2, 2)
        assert result.stderr == ""

    def test_is_a_resumed_trainings_own_micro_batch_size(
        self, train: Path, submit: Callable[..., tuple[Result, Settings]]
    ) -> None:
        _, first = submit("--set=train.micro_batch_size=auto")
        other = 16 if first.train.micro_batch_size != 16 else 8
        older, newer, broken = (train.parent / "runs/checkpoints/tiny" / f"iter_{k:07d}" for k in (5, 10, 15))
        for folder, size in ((older, 1), (newer, other)):
            folder.mkdir(parents=True)
            write_manifest(
                folder, iteration=5, files=(), layout_summary={"micro_batch_size": size}, common={}
            )
        broken.mkdir()
        assert submit("--set=train.micro_batch_size=auto")[1].train.micro_batch_size == other
        fresh = submit("--set=train.micro_batch_size=auto", "--set=checkpoint.resume=false")[1]
        assert fresh.train.micro_batch_size == first.train.micro_batch_size
        assert submit()[1].train.micro_batch_size == 2

    def test_nodes_that_a_depth_would_leave_idle_are_a_warning(
        self, submit: Callable[..., tuple[Result, Settings]]
    ) -> None:
        result, settings = submit("--set=slurm.nodes=3")
        assert "warning: task tiny starts with " in result.stderr
        assert settings.train.pipeline_model_parallel_size == 2

    def test_pipelines_that_do_not_fit_side_by_side_are_refused_before_anything_is_submitted(
        self, train: Path
    ) -> None:
        train.write_text(train.read_text() + "tasks: [{name: a}, {name: b}, {name: c}]\n")
        result = _run("--dry-run", train)
        assert result.exit_code == 2
        assert "the tasks need 6 nodes side by side (a 2, b 2, c 2" in result.stderr
        assert "write nodes: 6 or more" in result.stderr

    def test_a_model_that_fits_on_no_layout_is_refused_with_what_would_fit(self, train: Path) -> None:
        result = _run("--dry-run", "--set", "model.hidden_size=200000", train)
        assert result.exit_code == 2
        assert "memory: no layout of 4 layers" in result.stderr
        assert "would" in result.stderr

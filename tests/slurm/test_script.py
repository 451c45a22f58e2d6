"""The batch script: recorded texts in tests/golden, and values that must not break out of their line."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slurm.field_cases import case
from tests.slurm.settings_for_tests import option, settings
from unicron_hpc import __version__
from unicron_hpc.errors import ConfigError
from unicron_hpc.slurm.script import quoted, render, sbatch_options

_GOLDEN = Path(__file__).parents[1] / "golden"
_STAGED = Path("/scratch/runs/.staged-tiny.0123456789ab")

GOLDEN_CASES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "many-options": (
        "slurm.partition=gpu,long",
        "slurm.account=physics",
        "slurm.gres=gpu:8",
        "slurm.exclusive=true",
        "slurm.exclude=[n1, n2]",
        "slurm.mem=0",
        "slurm.requeue=false",
        "slurm.signal=B:USR2@120",
        "slurm.comment='first run, \"big\" model # 1'",
        "slurm.constraint='[rack1|rack2]'",
        "slurm.kill_on_invalid_dep=true",
    ),
    "setup": (
        "slurm.setup=['module load python/3.11', 'source \"$HOME/my env/bin/activate\"', "
        "'export A=`hostname`']",
        "slurm.python=python3",
    ),
    "odd-folder": ("run_dir=/scratch/100% mine/runs",),
}


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_scripts_are_as_recorded(name: str) -> None:
    text = render(
        settings(*GOLDEN_CASES[name]), _STAGED, source="train.yaml", python="/opt/python/bin/python"
    )
    assert text.replace(__version__, "VERSION") == (_GOLDEN / f"{name}.sh").read_text("utf-8")


def test_the_job_outlives_its_nodes_and_has_one_agent_a_node() -> None:
    options = sbatch_options(settings())
    assert "--no-kill" in options
    assert "--nodes=5" in options
    assert "--ntasks-per-node=1" in options
    assert "--open-mode=append" in options


def test_the_supervisor_takes_the_shells_place_so_that_signals_reach_it() -> None:
    assert case("signal-03")[1] == {"note": "exec the supervisor or trap and wait"}
    last = render(settings(), _STAGED).rstrip("\n").splitlines()[-1]
    assert last.startswith("exec ")


def test_setup_lines_are_verbatim() -> None:
    lines = ("if true; then", "  export X='a  b'", "fi")
    slurm = settings().slurm.model_copy(update={"setup": lines})
    text = render(settings().model_copy(update={"slurm": slurm}), _STAGED)
    assert "\n".join(lines) in text


def test_every_script_is_valid_shell() -> None:
    for name in GOLDEN_CASES:
        subprocess.run(["bash", "-n", str(_GOLDEN / f"{name}.sh")], check=True, timeout=10)


@given(st.text(min_size=1))
def test_a_value_stays_in_its_line_or_is_refused(value: str) -> None:
    try:
        line = quoted(f"--comment={value}")
    except ConfigError:
        return
    assert not {"\n", "\r", "\0"} & set(line)
    # sbatch's quoting is the shell's for what is let through.
    if value.isascii():
        assert shlex.split(line, comments=True) == [f"--comment={value}"]


@pytest.mark.parametrize("value", ["a\nb", "a\n#SBATCH --uid=0", 'it\'s "both"', "back\\slash", "\x00"])
def test_what_a_line_cannot_carry_is_refused(value: str) -> None:
    with pytest.raises(ConfigError):
        quoted(f"--comment={value}")


def test_a_run_folder_with_shell_characters_is_one_argument() -> None:
    folder = Path("/scratch/$(reboot) `x` 'y'")
    last = render(settings(), folder, python="/opt/py thon").splitlines()[-1]
    assert shlex.split(last) == ["exec", "/opt/py thon", "-m", "unicron_hpc.supervisor.batch", str(folder)]


def test_the_source_is_a_comment_whatever_its_name() -> None:
    text = render(settings(), _STAGED, source="a\nreboot\n.yaml")
    assert "a?reboot?.yaml" in text


def test_a_job_name_with_a_slash_or_space_is_refused() -> None:
    name = case("filename_pattern-09")[0]["job_name"]
    with pytest.raises(ConfigError, match="cannot be a name"):
        settings(f"name={name}")


def test_flags_and_values_of_sbatch_are_written_as_sbatch_wants_them() -> None:
    options = sbatch_options(
        settings(option("hold", "true"), option("exclusive", "user"), option("nice", "-5"))
    )
    assert {"--hold", "--exclusive=user", "--nice=-5"} <= set(options)
    assert not any(o.startswith(("--requeue", "--no-requeue", "--oversubscribe")) for o in options)

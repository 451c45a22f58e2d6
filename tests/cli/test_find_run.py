"""From what a person types for a job to its run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from unicron_hpc.cli.find_run import find_run_folder, job_of
from unicron_hpc.errors import ConfigError
from unicron_hpc.slurm import commands
from unicron_hpc.slurm.commands import Completed


def run_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "train.yaml").touch()
    return path


@pytest.mark.parametrize("job", ["**", "*", "?", "[0-9]", "[", "4711*", "", "../4711"])
def test_what_is_no_number_of_a_job_finds_none(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder(tmp_path / "runs" / "tiny-4711")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        find_run_folder(job, None)


def test_a_run_without_slurm_is_not_taken_for_slurms_job_of_the_number_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = run_folder(tmp_path / "runs" / "tiny-local-20261130-190000-4711")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        find_run_folder("4711", None)
    assert find_run_folder("local-20261130-190000-4711", None) == local
    job = run_folder(tmp_path / "runs" / "tiny-4711")
    assert find_run_folder("4711", None) == job


def test_a_file_of_settings_where_one_stands_makes_no_run_folder_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no run folder"):
        find_run_folder("", None)


@pytest.mark.parametrize("job", ["12", "10_3", "12+1"])
@pytest.mark.parametrize("name", ["runs", "100% mine/my runs"])
@pytest.mark.parametrize("behind", ["", " Power= ", " TresPerTask=cpu=1"])
def test_slurm_is_asked_where_the_output_of_a_job_elsewhere_lies(
    job: str, name: str, behind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path / name / "tiny-12")

    def scontrol(argv: list[str], **_: object) -> Completed:
        line = f"JobId=12 JobName=tiny StdIn=/dev/null StdOut={folder}.out{behind}\n"
        return Completed(tuple(argv), line if argv[-1] == job else "", "", 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(commands, "run", scontrol)
    assert find_run_folder(job, None) == folder


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("gpt-tiny-4711", "4711"),
        ("gpt-100_3", "100_3"),
        ("gpt-local-20261130-190000-4711", "local-20261130-190000-4711"),
        ("gpt-tiny", ""),
        ("4711", ""),
    ],
)
def test_a_run_folder_is_named_after_its_job(name: str, job: str) -> None:
    assert job_of(Path(name)) == job

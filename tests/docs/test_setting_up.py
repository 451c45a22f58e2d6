"""The quickstart says what is missing and what to ask for, and never fetches CUDA where there is no GPU."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from quickstart_steps import requirements, system_packages, torch_build
from quickstart_steps.environment import Environment
from quickstart_steps.errors import QuickstartError
from testcluster import packages

from .pages import REPOSITORY


def program(folder: Path, name: str, script: str) -> None:
    """Put an executable shell script into a folder."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


class TestAMachineWithoutAnEnvironment:
    def test_lacks_everything_that_setup_cfg_names(self, tmp_path: Path) -> None:
        (tmp_path / "setup.cfg").write_text((REPOSITORY / "setup.cfg").read_text())
        missing = Environment(tmp_path).missing()
        assert requirements.TORCH in missing
        assert "megatron-core==0.16.1" in missing
        assert missing[-1] == "unicron-hpc"

    def test_is_told_from_one_whose_environment_is_broken(self, tmp_path: Path) -> None:
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
        assert not Environment(tmp_path).works()


def test_an_environment_that_is_whole_needs_nothing() -> None:
    python = Path(sys.executable)
    assert requirements.unmet(python, REPOSITORY, ["pytest", "click>=8.1"]) == []


def test_what_an_environment_lacks_is_named_with_its_version() -> None:
    asked = ["pytest>=9999", "click", "no-such-thing>=1"]
    assert requirements.unmet(Path(sys.executable), REPOSITORY, asked) == ["pytest>=9999", "no-such-thing>=1"]


def test_an_environment_of_another_clone_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text((REPOSITORY / "setup.cfg").read_text())
    assert requirements.unmet(Path(sys.executable), tmp_path, []) == ["unicron-hpc"]


class TestSystemPackages:
    def test_are_asked_of_the_administrator_where_there_is_no_sudo(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path, "apt-get", "exit 99")
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(QuickstartError) as caught:
            system_packages.install(["slurmd", "munge"])
        assert "Ask for: apt-get install --no-install-recommends slurmd munge" in str(caught.value)

    def test_are_named_where_the_distribution_has_no_apt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(QuickstartError, match=r"no apt-get: slurmd munge(?s:.*)distribution"):
            system_packages.install(["slurmd", "munge"])

    def test_that_cannot_be_fetched_end_with_the_command_and_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path, "apt-get", "echo no mirror >&2; exit 100")
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        with pytest.raises(QuickstartError, match=r"apt-get update -qq: ended with code 100\n  no mirror"):
            system_packages.install(["slurmd"])

    def test_of_docker_are_named_once_and_only_where_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lists = {"embedded": ["munge", "slurmd"], "docker": ["docker.io", "munge"]}
        monkeypatch.setattr(packages, "missing", lambda driver: list(lists[driver]))
        assert system_packages.missing(docker=False) == ["munge", "slurmd"]
        assert system_packages.missing(docker=True) == ["munge", "slurmd", "docker.io"]


class TestTorch:
    @pytest.fixture
    def answering(self, tmp_path: Path) -> Path:
        """An interpreter that answers as pip does for a CUDA build."""
        names = ("torch", "nvidia-cublas-cu12", "sympy", "cuda-bindings")
        items = ", ".join(f'{{"metadata": {{"name": "{name}"}}}}' for name in names)
        program(tmp_path, "python", f"echo '{{\"install\": [{items}]}}'")
        return tmp_path / "python"

    def test_a_cuda_build_is_refused_without_a_gpu(
        self, answering: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch_build, "has_gpu", lambda: False)
        with pytest.raises(QuickstartError, match=r"CUDA build \(2 packages(?s:.*)--torch-index=URL"):
            torch_build.check(answering, "torch==1", [])

    def test_a_cuda_build_is_welcome_with_a_gpu(
        self, answering: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch_build, "has_gpu", lambda: True)
        torch_build.check(answering, "torch==1", [])

    def test_a_cpu_build_has_no_cuda_packages(self) -> None:
        report = {"install": [{"metadata": {"name": name}} for name in ("torch", "sympy", "filelock")]}
        assert torch_build.cuda_packages(report) == []


class TestTheCommand:
    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(REPOSITORY / "slurm" / "quickstart"), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **variables},
        )

    def test_help_teaches_from_any_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        done = self.run("--help")
        assert done.returncode == 0
        assert "kills a node in the middle of it" in done.stdout

    def test_wrong_usage_ends_with_2(self) -> None:
        done = self.run("--iterations", "3")
        assert done.returncode == 2
        assert "at least 20" in done.stderr

    def test_a_named_python_that_does_not_fit_is_an_error_and_not_replaced(self) -> None:
        done = self.run("--list", UNICRON_PYTHON="/nowhere/python")
        assert done.returncode == 1
        assert "UNICRON_PYTHON=/nowhere/python is no Python 3.11" in done.stderr

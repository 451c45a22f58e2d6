"""A wheel built from the repository and installed elsewhere works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[1]
_SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "unicron_hpc", "templates")


def _run(*argv: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in _SOURCES:
        path = _REPOSITORY / name
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, source / name)
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    _run(*pip, "install", "--no-deps", "--no-index", "--target", folder / "target", wheel, cwd=folder)
    return folder / "target"


def test_the_templates_are_found_and_the_shipped_example_is_valid(installed: Path, tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(installed), "PATH": "/nonexistent"}
    code = (
        "import importlib.resources as r; print(r.files('unicron_hpc.templates').joinpath('gpt-tiny.yaml'))"
    )
    example = Path(_run("-c", code, cwd=tmp_path, env=env).strip())
    assert example.is_relative_to(installed)
    script = _run("-m", "unicron_hpc.cli.sbatch", "--dry-run", example, cwd=tmp_path, env=env)
    assert "#SBATCH --nodes=5\n" in script
    assert f"#SBATCH --output={tmp_path}/runs/%x-%j.out\n" in script


def test_the_commands_are_installed_and_data_files_are_there(installed: Path) -> None:
    assert {"unicron-sbatch", "unicron"} <= {path.name for path in (installed / "bin").iterdir()}
    assert (installed / "unicron_hpc" / "py.typed").exists()
    wanted = {
        path.relative_to(_REPOSITORY / "unicron_hpc")
        for path in (_REPOSITORY / "unicron_hpc").rglob("*")
        if path.is_file() and path.suffix in {".py", ".j2", ".yaml", ".json", ".csv", ".txt"}
    }
    there = {path.relative_to(installed / "unicron_hpc") for path in (installed / "unicron_hpc").rglob("*")}
    assert wanted <= there, wanted - there
    assert not (installed / "tests").exists()

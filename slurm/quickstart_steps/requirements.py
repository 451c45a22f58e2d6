"""What setup.cfg asks for, and which of it an environment lacks."""

from __future__ import annotations

import configparser
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: The release that everything was tried with; setup.cfg allows more.
TORCH = "torch==2.13.0"
EXTRAS = ("train", "dev")

# Runs in the environment that is looked at. pip's copy of `packaging` is there before anything is installed.
_PROBE = """
import importlib.metadata as metadata, json, sys
from pip._vendor.packaging.requirements import Requirement
unmet = []
for text in sys.argv[2:]:
    wanted = Requirement(text)
    try:
        there = wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        there = False
    if not there:
        unmet.append(text)
try:
    origin = json.loads(metadata.distribution("unicron-hpc").read_text("direct_url.json") or "{}")
except metadata.PackageNotFoundError:
    origin = {}
here = origin.get("url") == sys.argv[1] and origin.get("dir_info", {}).get("editable", False)
print(json.dumps({"unmet": unmet, "here": here}))
"""


def wanted(repository: Path) -> list[str]:
    """Return the requirements of the package and of its extras for training and development."""
    settings = _settings(repository)
    lines = settings["options"]["install_requires"].splitlines()
    for extra in EXTRAS:
        lines += settings["options.extras_require"][extra].splitlines()
    return [line.strip() for line in lines if line.strip()]


def commands(repository: Path) -> list[str]:
    """Return the names of the commands that the package installs."""
    lines = _settings(repository)["options.entry_points"]["console_scripts"].splitlines()
    return [line.split("=")[0].strip() for line in lines if line.strip()]


def unmet(python: Path, repository: Path, requirements: Sequence[str]) -> list[str]:
    """Return what the environment of `python` lacks; `unicron-hpc` where it is not this repository's.

    Parameters
    ----------
    python
        The environment's interpreter, which works.
    repository
        The clone that has to be installed there, editable.
    requirements
        As in setup.cfg.
    """
    answer = subprocess.run(
        [str(python), "-c", _PROBE, repository.as_uri(), *requirements],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        stdin=subprocess.DEVNULL,
        cwd="/",
    )
    told = json.loads(answer.stdout)
    installed = told["here"] and all((python.parent / name).exists() for name in commands(repository))
    return [*told["unmet"], *([] if installed else ["unicron-hpc"])]


def _settings(repository: Path) -> configparser.ConfigParser:
    settings = configparser.ConfigParser()
    settings.read(repository / "setup.cfg", encoding="utf-8")
    return settings

"""Keeps pip from fetching gigabytes of CUDA libraries on a machine without a GPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quickstart_steps.errors import QuickstartError

#: What a CUDA build of torch brings along, by the beginnings of the packages' names.
_CUDA = ("nvidia-", "cuda-")


def has_gpu() -> bool:
    """Tell whether this machine has an NVIDIA GPU with its driver."""
    return Path("/dev/nvidiactl").exists()


def cuda_packages(report: dict[str, Any]) -> list[str]:
    """Return the CUDA packages in pip's report of what it would install."""
    names = [str(item["metadata"]["name"]) for item in report.get("install", [])]
    return sorted(name for name in names if name.lower().startswith(_CUDA))


def check(python: Path, requirement: str, options: Sequence[str]) -> None:
    """Ask pip what it would install, and refuse a CUDA build where there is no GPU.

    Parameters
    ----------
    python
        The environment's interpreter.
    requirement
        Of torch.
    options
        pip's options, as for the installation that follows.
    """
    if has_gpu():
        return
    command = [str(python), "-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet", "install"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", *options, requirement]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, timeout=1800, check=False
    )
    if done.returncode != 0:
        raise QuickstartError(
            f"cannot find {requirement}; its own words are above",
            where="pip",
            hint="Does this machine reach a package index? pip's settings and variables (PIP_INDEX_URL,\n"
            "PIP_PROXY, ...) are respected; --torch-index=URL names an index for torch alone.",
        )
    found = cuda_packages(json.loads(done.stdout))
    if found:
        raise QuickstartError(
            f"pip would take a CUDA build ({len(found)} packages beside it), and there is no GPU here",
            where=requirement,
            hint="Name the index of torch's CPU builds, which torch's page on installing gives for\n"
            "Linux, pip and CPU: ./slurm/quickstart --torch-index=URL\n"
            "or put a CPU wheel in a folder and set PIP_FIND_LINKS to it.",
        )

"""Measures what a node needs to do its work, and never waits long for a sick driver or file server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from unicron_hpc.detect.node_checks import NodeReport
from unicron_hpc.supervisor.in_time import in_time

#: How long the driver and the run folder may take to answer, in seconds. In this time the zygote imports.
LIMIT = 8.0
#: How much longer a program may take to die, in seconds.
KILL_GRACE = 1.0
#: Bytes of the file that is written to the run folder.
WRITTEN = 64 * 1024

_QUERY = ("--query-gpu=index,pci.bus_id", "--format=csv,noheader")
_GPU = re.compile(r"\s*\d+\s*,\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*")


@dataclass(frozen=True, slots=True)
class Gpus:
    """What the driver lists.

    Attributes
    ----------
    buses
        PCI addresses; None when they could not be counted.
    problem
        What was said that is no GPU.
    seconds
        The time that it had when it gave no answer.
    """

    buses: tuple[str, ...] | None = None
    problem: str = ""
    seconds: float | None = None


async def measure(run_folder: Path, gpus: Gpus | None) -> NodeReport:
    """Look at memory, shared memory and the run folder.

    Parameters
    ----------
    run_folder
        Where a file is written through to disk and removed again.
    gpus
        What `count_gpus` found, where GPUs are needed.
    """
    folder = await _folder(run_folder)
    return NodeReport(
        gpus=None if gpus is None or gpus.buses is None else len(gpus.buses),
        gpu_problem=gpus.problem if gpus else "",
        gpu_seconds=gpus.seconds if gpus else None,
        memory=_available_memory(),
        shared_memory=_free(Path("/dev/shm")),
        disk=folder.disk,
        write_seconds=folder.write_seconds,
        write_error=folder.write_error,
        folder_seconds=folder.folder_seconds,
    )


async def count_gpus(program: str = "nvidia-smi", seconds: float = LIMIT) -> Gpus:
    """Ask the driver's own tool for the GPUs of this node, or those that a cgroup leaves of them."""
    path = shutil.which(program)
    if path is None:
        return Gpus(problem=f"there is no {program} on PATH")
    try:
        # The thread kills a program that is late; one inside a sick driver does not even die.
        ended = await in_time(lambda: _ask([path, *_QUERY], seconds), seconds + KILL_GRACE)
    except (TimeoutError, subprocess.TimeoutExpired):
        return Gpus(seconds=seconds)
    except OSError as error:
        return Gpus(problem=f"{path}: {error.strerror}")
    return read_gpus(ended.stdout.decode(errors="replace"), ended.returncode)


def _ask(command: list[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds,
        check=False,
    )


def read_gpus(output: str, status: int) -> Gpus:
    """Read the answer of `nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader` (pure)."""
    buses, other = [], []
    for line in filter(str.strip, output.splitlines()):
        match = _GPU.fullmatch(line)
        if match:
            buses.append(match["bus"].lower())
        else:
            other.append(line.strip())
    said = "; ".join(other)
    if status and not buses and "No devices were found" not in said:
        return Gpus(problem=f"nvidia-smi ended with {status}: {said}")
    return Gpus(tuple(buses), said)


async def _folder(run_folder: Path) -> NodeReport:
    try:
        return await in_time(lambda: _write(run_folder), LIMIT)
    except TimeoutError:
        return NodeReport(folder_seconds=LIMIT)


def _write(run_folder: Path) -> NodeReport:
    began = time.monotonic()
    try:
        with tempfile.NamedTemporaryFile(dir=run_folder / "logs", prefix=".check-") as file:
            file.write(os.urandom(WRITTEN))
            file.flush()
            os.fsync(file.fileno())
        seconds = time.monotonic() - began
    except OSError as error:
        text = f"{run_folder / 'logs'}: {error.strerror or error}"
        return NodeReport(write_error=(error.errno or 0, text), disk=_free(run_folder))
    return NodeReport(write_seconds=seconds, disk=_free(run_folder))


def _free(path: Path) -> int | None:
    """Bytes that a file system still takes from us."""
    try:
        state = os.statvfs(path)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def _available_memory(path: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that programs can have without swapping."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        word, _, number = line.partition(":")
        if word == "MemAvailable":
            return int(number.split()[0]) * 1024
    return None

"""Prepares a task's dataset in a process of its own, on the coordinator's node, before ranks start."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

#: Bound for building an indexed dataset, in seconds (a terabyte of text takes hours).
LIMIT = 24 * 3600.0


async def prepare_task_data(run_folder: Path, task: str, environment: Mapping[str, str]) -> str:
    """Run `python -m unicron_hpc.runtime.task_data`.

    Returns
    -------
    str
        Empty on success, else what it wrote to stderr.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "unicron_hpc.runtime.task_data",
        str(run_folder),
        task,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
    )
    try:
        async with asyncio.timeout(LIMIT):
            _, stderr = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise
    if process.returncode == 0:
        return ""
    return stderr.decode(errors="replace").strip() or f"ended with {process.returncode}"

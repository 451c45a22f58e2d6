"""Has a task's dataset prepared by a child of this node's zygote, before ranks start."""

from __future__ import annotations

import asyncio
from pathlib import Path

from unicron_hpc.errors import UnicronError
from unicron_hpc.runtime.environment import PREPARE_DATA, ROLE, RUN_FOLDER, TASK
from unicron_hpc.supervisor.zygote_client import Zygote

#: Bound for building an indexed dataset, in seconds (a terabyte of text takes hours).
LIMIT = 24 * 3600.0


async def prepare_task_data(run_folder: Path, task: str, zygote: Zygote) -> str:
    """Build the data of `task`.

    Returns
    -------
    str
        Empty on success, else what went wrong.
    """
    log_path = run_folder / "logs" / f"data-{task}.log"
    written = log_path.stat().st_size if log_path.exists() else 0
    environment = {ROLE: PREPARE_DATA, RUN_FOLDER: str(run_folder), TASK: task}
    try:
        child = await zygote.spawn(log_path, environment)
    except UnicronError as error:
        return str(error)
    try:
        async with asyncio.timeout(LIMIT):
            await child.gone.wait()
    except BaseException:
        child.kill()
        raise
    finally:
        child.socket.close()
    if child.status == 0:
        return ""
    said = log_path.read_bytes()[written:].decode(errors="replace").strip()
    return "\n".join(said.splitlines()[-20:]) or f"ended with {child.status}"

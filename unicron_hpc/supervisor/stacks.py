"""Has a rank write down where its threads are, by its signal handler: it needs nothing else to work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from pathlib import Path

from unicron_hpc.runtime.phase_page import PhasePage
from unicron_hpc.supervisor import threads
from unicron_hpc.supervisor.in_time import in_time
from unicron_hpc.supervisor.rank_messages import RankAddress
from unicron_hpc.supervisor.watch_messages import RankStacks
from unicron_hpc.supervisor.zygote_client import RankProcess

log = logging.getLogger(__name__)

#: Longest wait for a dump, in seconds: recovery waits for it.
DUMP_LIMIT = 0.15
#: A dump that has not grown for this long is complete.
QUIET = 0.01
#: How long the file in the run folder may take.
FILE_LIMIT = 5.0


async def take(address: RankAddress, process: RankProcess, page: PhasePage, file: Path) -> RankStacks:
    """Take a rank's stacks.

    Parameters
    ----------
    file
        Where people find all of it; appended to by `keep`, named in the result.
    """
    state = threads.describe(process.pid)
    text = ""
    mark = page.mark()
    if mark is None:
        state = f"not yet at work; {state}"
    elif threads.state_of(process.pid, process.pid) in ("T", "t"):
        # It cannot answer a signal; what the kernel knows has to do.
        text = threads.kernel_stack(process.pid, mark.thread)
    else:
        text = await _ask(process, page)
    return RankStacks(address, process.pid, state, text, file.name)


async def keep(taken: RankStacks, file: Path) -> None:
    """Append a dump to its file, however slow the disk is."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S")
    text = f"== {when} pid {taken.pid} {taken.state}\n{taken.stacks}\n"
    try:
        await in_time(lambda: _append(file, text), FILE_LIMIT)
    except (OSError, TimeoutError) as error:
        log.warning("stacks could not be written to %s: %s", file, error)


async def _ask(process: RankProcess, page: PhasePage) -> str:
    page.expect_dump()
    with contextlib.suppress(ProcessLookupError, OSError):
        signal.pidfd_send_signal(process.pidfd, signal.SIGUSR2)
    deadline = time.monotonic() + DUMP_LIMIT
    before = 0
    while time.monotonic() < deadline and not process.gone.is_set():
        await asyncio.sleep(QUIET if before else QUIET / 4)
        size = page.dump_bytes()
        if size and size == before:
            break
        before = size
    return page.dump()


def _append(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", errors="replace") as stream:
        stream.write(text)

"""Ordering a drill from outside the job: with its keys, which only its owner can read."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from unicron_hpc.errors import UnicronError
from unicron_hpc.supervisor import directory, drill_notes
from unicron_hpc.supervisor.keys import read_keys
from unicron_hpc.supervisor.messages import Drill
from unicron_hpc.supervisor.transport import Transport

#: How long an agent's answer may take, in seconds. On a shared file system a new file shows late.
ANSWER_LIMIT = 60.0
#: Time between two looks at the run folder, and between two sendings of the same order, in seconds.
_LOOK, _AGAIN = 0.05, 2.0
#: The sender of an order; never the name of a node, which has no blank in it.
_SENDER = "unicron drill"


def order(run_folder: Path, node: str, drill: Drill) -> None:
    """Have a node's agent take an order.

    Raises
    ------
    UnicronError
        When the agent refuses it, cannot be reached, or does not answer.
    """
    if read_answer(run_folder, drill.order) is None:
        asyncio.run(_send(run_folder, node, drill))
    answer = read_answer(run_folder, drill.order)
    if answer is None:
        raise UnicronError(
            f"its agent did not take the order within {ANSWER_LIMIT:g} s",
            where=node,
            hint="Is the job running (`unicron status`), and can this machine reach the node?",
        )
    if answer.state == "refused":
        raise UnicronError(f"the agent refused: {answer.detail}", where=node)


def read_answer(run_folder: Path, number: str) -> drill_notes.Note | None:
    """What has become of an order so far; a refusal first, then the latest state."""
    states: tuple[drill_notes.State, ...] = ("refused", "ended", "injected", "armed")
    found = (drill_notes.read(run_folder, number, state) for state in states)
    return next((note for note in found if note is not None), None)


async def _send(run_folder: Path, node: str, drill: Drill) -> None:
    transport = Transport(_SENDER, read_keys(run_folder), "")
    try:
        deadline = time.monotonic() + ANSWER_LIMIT
        next_sending = 0.0
        while read_answer(run_folder, drill.order) is None and time.monotonic() < deadline:
            if time.monotonic() >= next_sending:
                next_sending = time.monotonic() + _AGAIN
                transport.learn(directory.addresses(run_folder))
                transport.send(node, 0, drill)
            await asyncio.sleep(_LOOK)
    finally:
        await transport.close(linger=0)

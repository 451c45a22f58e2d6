"""Asks Slurm to drain lost nodes, beside recovery and never in its way."""

from __future__ import annotations

import asyncio
import logging

from unicron_hpc.errors import UnicronError
from unicron_hpc.report.journal import Journal
from unicron_hpc.slurm.drain import drain
from unicron_hpc.supervisor.allocation import Allocation

log = logging.getLogger(__name__)


class Drains:
    """Drain requests of this job.

    Parameters
    ----------
    allocation
        The job; only its own nodes are drained.
    journal
        Takes `drain_requested` and `drain_result`.
    enabled
        `recovery.drain`.
    """

    def __init__(self, allocation: Allocation, journal: Journal, enabled: bool) -> None:
        self._allocation = allocation
        self._journal = journal
        self._enabled = enabled and allocation.on_slurm
        self._running: set[asyncio.Task[None]] = set()

    def request(self, node: str, cause: str, epoch: int) -> None:
        """Ask in the background."""
        if not self._enabled:
            return
        self._journal.write("drain_requested", epoch, node=node, reason=cause)
        task = asyncio.create_task(self._drain(node, cause, epoch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def wait(self, seconds: float) -> None:
        """Give requests under way a last chance."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)

    def close(self) -> None:
        """Give up on what has not been answered."""
        for task in self._running:
            task.cancel()

    async def _drain(self, node: str, cause: str, epoch: int) -> None:
        try:
            result = await asyncio.to_thread(
                drain, node, cause, self._allocation.nodes, job_id=self._allocation.job_id
            )
            drained, message = result.drained, result.message
        except UnicronError as error:
            drained, message = False, str(error)
        log.info("drain of %s: %s (%s)", node, drained, message)
        self._journal.write("drain_result", epoch, node=node, drained=drained, message=message)

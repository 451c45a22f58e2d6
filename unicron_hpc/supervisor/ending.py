"""The end of a run: the summary, the word to every agent, and the job itself where nobody else can end it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from unicron_hpc.errors import UnicronError
from unicron_hpc.report.journal import Journal
from unicron_hpc.report.summary import write_summary
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.commit_log import CommitLog
from unicron_hpc.supervisor.draining import Drains
from unicron_hpc.supervisor.in_time import in_time
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import Body, Finish, Role

log = logging.getLogger(__name__)

#: Longest text of a cause's detail in the journal, in characters.
DETAIL = 4000
#: How long the summary may take, and what is still to be written before it can be made, in seconds.
SUMMARY_LIMIT = 20.0
FLUSH_LIMIT = 5.0
#: How long others may take to leave before a job without a batch node is ended around them, in seconds.
LEAVE_GRACE = 8.0
#: Seconds without a sign of life after which an agent that was told to leave has left.
GONE = 1.5


class Ending:
    """How a run ends, once and for all nodes.

    Parameters
    ----------
    run_folder, allocation, members, journal, commits, drains
        The coordinator's own.
    node
        The coordinator's node, which leaves last.
    post
        Sends a message to a node's agent.
    started
        Unix time at which the job's first coordinator took office.
    """

    def __init__(
        self,
        *,
        run_folder: Path,
        allocation: Allocation,
        members: Members,
        journal: Journal,
        commits: CommitLog,
        drains: Drains,
        node: str,
        post: Callable[[str, Body], None],
        started: float,
    ) -> None:
        self._run_folder = run_folder
        self._allocation = allocation
        self._members = members
        self._journal = journal
        self._commits = commits
        self._drains = drains
        self._node = node
        self._post = post
        self._started = started
        self._leaving: asyncio.Task[None] | None = None

    def end(self, *, epoch: int, exit_code: int, state: str, cause: str, detail: str) -> None:
        """Write how the run ended and send everybody home.

        Parameters
        ----------
        state
            `finished`, `failed` or `cancelled`.
        cause, detail
            Why, in a sentence, and what else is known (a traceback).
        """
        log.info("the run ends: %s %s", state, cause)
        self._journal.write(
            "job_finished", epoch, state=state, exit_code=exit_code, cause=cause, detail=detail[-DETAIL:]
        )
        # At once: nobody coordinates while the summary is written, and silence would make them elect one.
        for node in self._members:
            if node.role is not Role.LOST and node.joined and node.name != self._node:
                self._post(node.name, Finish(exit_code, cause or state))
        self._leaving = asyncio.create_task(self._leave(exit_code, state, cause), name="ending")

    async def _leave(self, exit_code: int, state: str, cause: str) -> None:
        try:
            await in_time(lambda: self._summarize(exit_code, state, cause), SUMMARY_LIMIT)
        except Exception:  # also for a damaged record in the run folder: the agents must still be sent home
            log.exception("no summary could be written")
        await self._drains.wait(5.0)
        batch = self._members.get(self._allocation.batch_node)
        if batch is not None and batch.role is Role.LOST:
            await self._others_gone()
            await asyncio.to_thread(_end_orphaned_job, self._allocation.job_id, exit_code)
        self._post(self._node, Finish(exit_code, cause or state))

    def _summarize(self, exit_code: int, state: str, cause: str) -> None:
        """Write the summary of all that is on disk by now."""
        for file in (self._journal, self._commits):
            if not file.flush_file(FLUSH_LIMIT):
                log.error("the summary does without what could not be written to %s yet", self._run_folder)
        write_summary(self._run_folder, state=state, exit_code=exit_code, cause=cause, started=self._started)

    async def _others_gone(self) -> None:
        deadline = time.monotonic() + LEAVE_GRACE
        while time.monotonic() < deadline:
            since = time.monotonic() - GONE
            others = [n for n in self._members.alive() if n.name != self._node]
            if all(node.heard is not None and node.heard < since for node in others):
                return
            await asyncio.sleep(GONE / 5)


def _end_orphaned_job(job_id: str, exit_code: int) -> None:
    """Have Slurm end a job whose batch script died with its node; this also ends the step we run in."""
    from unicron_hpc.slurm.complete import complete_job  # looks for libslurm: only where it is needed

    try:
        log.info("the batch node is lost; ending job %s: %s", job_id, complete_job(job_id, exit_code))
    except UnicronError as error:
        log.error("job %s could not be ended: %s", job_id, error)

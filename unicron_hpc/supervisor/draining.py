"""What becomes of a node that was taken out: drained and left out of later jobs, or nothing.

All of it happens beside recovery and never in its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.handling import Action, Case, Decision, decide
from unicron_hpc.detect.severity import LOST_CONNECTION
from unicron_hpc.errors import UnicronError
from unicron_hpc.report.journal import Journal
from unicron_hpc.slurm import bad_nodes, drain_reasons, drain_request, giving_back, job_end
from unicron_hpc.slurm.drain import DrainResult, drain
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.in_time import in_time
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.messages import OwedDrain

log = logging.getLogger(__name__)

#: How long a file may take to be written, in seconds; longer than `bad_nodes.PATIENCE`.
FILE_LIMIT = 10.0


class Drains:
    """The bad nodes of this job.

    Parameters
    ----------
    allocation
        The job; only its own nodes are drained.
    journal
        Takes `drain_requested`, `drain_result`, `drain_withheld`, `node_given_back` and `node_warning`.
    recovery
        Whether to drain, with what reason, and how long to watch whether other nodes are lost, too.
    run_folder
        Where a request is left that Slurm refused; the list of bad nodes is beside it.
    settled
        Called when what was owed to a node is done.
    """

    def __init__(
        self,
        allocation: Allocation,
        journal: Journal,
        recovery: RecoverySettings,
        run_folder: Path,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_settled = settled
        self._allocation = allocation
        self._journal = journal
        self._recovery = recovery
        self._run_folder = run_folder
        self._running: set[asyncio.Task[None]] = set()
        self._silent: dict[str, float] = {}
        self._pending: dict[str, asyncio.Event] = {}
        self._owed: dict[str, OwedDrain] = {}
        self._begun: set[str] = set()

    @property
    def owed(self) -> tuple[OwedDrain, ...]:
        """Nodes to be drained of which there is no answer yet: a successor has to see to them."""
        return tuple(self._owed.values())

    def adopt(self, owed: Sequence[OwedDrain]) -> None:
        """Note what a predecessor leaves to be done; `resume` begins with it."""
        self._owed |= {one.evidence.node: one for one in owed}

    def resume(self) -> None:
        """Do what a predecessor had not done: all of it may be asked twice.

        Who was silent for it counts as silent now, together with those who went silent with it.
        """
        for node, owed in list(self._owed.items()):
            if owed.evidence.finding == LOST_CONNECTION:
                self._silent.setdefault(node, time.monotonic())
            self.drain(node, owed.evidence, owed.epoch)

    def taken_out(self, node: str, evidence: Evidence, decision: Decision, epoch: int) -> None:
        """A node is out of the plan: have done in the background what goes with the decision."""
        if evidence.finding == LOST_CONNECTION:
            self._silent[node] = time.monotonic()
        if decision.action is Action.NODE_OUT:
            self.drain(node, evidence, epoch)
        elif decision.action is Action.NODE_ON_TRIAL:
            self._pending[node] = asyncio.Event()
        elif decision.action is Action.NODE_AWAY:
            self._withheld(node, decision.reason, epoch)

    def drain(self, node: str, evidence: Evidence, epoch: int) -> None:
        """Have a node drained that is to blame."""
        pending = self._pending.setdefault(node, asyncio.Event())
        if not self._allocation.on_slurm:
            pending.set()
            return
        if node in self._begun:
            return
        self._begun.add(node)
        self._owed[node] = OwedDrain(evidence.carried(), epoch)
        task = asyncio.create_task(self._drain(node, evidence, epoch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda done: self._ended(node, done))

    def _ended(self, node: str, done: asyncio.Task[None]) -> None:
        self._pending[node].set()
        if not done.cancelled():  # else our office has ended, and it is still to be done
            del self._owed[node]
            self._on_settled()

    async def settled(self, node: str, seconds: float) -> None:
        """Wait until what is to be done about a node is done, its trial included."""
        pending = self._pending.get(node)
        if pending is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pending.wait(), seconds)

    async def wait(self, seconds: float) -> None:
        """Give requests under way a last chance."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)

    def close(self) -> None:
        """Give up on what has not been answered."""
        for task in self._running:
            task.cancel()

    def _together(self, node: str) -> int:
        """Nodes that went silent about when this one did, itself included."""
        when = self._silent.get(node)
        if when is None:
            return 1
        return sum(abs(other - when) <= self._recovery.node_timeout for other in self._silent.values())

    async def _drain(self, node: str, evidence: Evidence, epoch: int) -> None:
        if node in self._silent:
            # A dead switch shows node by node: who else is lost at the same time tells whose fault it is.
            await asyncio.sleep(self._recovery.node_timeout)
            decision = decide(Case(evidence.finding, lost_together=self._together(node)), self._recovery)
            if decision.action is not Action.NODE_OUT:
                self._withheld(node, f"{decision.rule}: {decision.reason}", epoch)
                return
        try:
            await self._ask(node, evidence, epoch)
        except (UnicronError, OSError) as error:
            log.exception("drain of %s", node)
            self._journal.write("drain_result", epoch, node=node, drained=False, message=str(error))

    async def _ask(self, node: str, evidence: Evidence, epoch: int) -> None:
        job, kind = self._allocation.job_id, evidence.finding.error
        wanted = await asyncio.to_thread(job_end.wanted, job, node)
        if wanted:
            self._withheld(node, wanted, epoch)
            return
        result: DrainResult | None = None
        if self._recovery.drain:
            reason = drain_reasons.fill(
                self._recovery.drain_reason,
                {
                    "kind": kind,
                    "job": job,
                    "time": drain_reasons.clock(evidence.time),
                    "node": node,
                    "rank": "" if evidence.rank is None else str(evidence.rank),
                },
            )
            self._journal.write("drain_requested", epoch, node=node, reason=kind, words=reason)
            result = await asyncio.to_thread(drain, node, reason, self._allocation.nodes, job_id=job)
            message, request = result.message, ""
            if result.refused:
                try:
                    path = await in_time(
                        lambda: drain_request.leave(self._run_folder, node, job, kind), FILE_LIMIT
                    )
                    request = str(path)
                    message = f"{message}; the request is in {path}"
                except OSError as error:
                    message = f"{message}; no request could be left: {_why(error)}"
            log.info("drain of %s: %s (%s)", node, result.drained, message)
            self._journal.write(
                "drain_result", epoch, node=node, drained=result.drained, message=message, request=request
            )
        drained = result is not None and result.drained
        entry = bad_nodes.BadNode(node, evidence.time, kind, job, drained)
        try:
            await in_time(lambda: bad_nodes.add(self._run_folder.parent, entry), FILE_LIMIT)
        except OSError as error:
            self._journal.write(
                "node_warning",
                epoch,
                node=node,
                error="later jobs will not leave it out",
                evidence=f"{self._run_folder.parent / bad_nodes.FILE} cannot be written: {_why(error)}",
            )
        if drained:
            given, words = await asyncio.to_thread(giving_back.give_back, job, node)
            self._journal.write("node_given_back", epoch, node=node, done=given, message=words)

    def _withheld(self, node: str, why: str, epoch: int) -> None:
        log.info("%s is not drained: %s", node, why)
        self._journal.write("drain_withheld", epoch, node=node, reason=why)


def _why(error: OSError) -> str:
    return error.strerror or f"no answer within {FILE_LIMIT:g} s"

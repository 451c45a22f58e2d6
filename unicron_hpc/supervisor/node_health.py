"""The health of an agent's own node: checked before it joins, and again when another node is lost."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from unicron_hpc.config import Settings
from unicron_hpc.detect.node_checks import judge
from unicron_hpc.detect.severity import Method
from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm.job_environment import read_job_environment
from unicron_hpc.supervisor.messages import Body, JobSnapshot, Noticed, Role
from unicron_hpc.supervisor.node_report import count_gpus, measure

log = logging.getLogger(__name__)


class NodeHealth:
    """Checks one node.

    Parameters
    ----------
    run_folder, settings
        The job's.
    slots
        Ranks that this node holds: as many GPUs, where Slurm does not say how many there are.
    report
        Takes what is found after the node has joined.
    """

    def __init__(
        self, run_folder: Path, settings: Settings, slots: int, report: Callable[[Body], None]
    ) -> None:
        self._run_folder = run_folder
        self._report = report
        cuda = any(task.train.device == "cuda" for task in settings.task_list())
        self._gpus_wanted = (_gpus_of_job() or slots) if cuda else 0
        self._known: set[str] = set()
        self._lost: set[str] = set()
        self._again: asyncio.Task[None] | None = None
        #: PCI addresses of this job's GPUs; None where they are not known.
        self.buses: tuple[str, ...] | None = None

    async def check(self) -> tuple[Noticed, ...]:
        """Look at everything; what was found before is not told again."""
        gpus = await count_gpus() if self._gpus_wanted else None
        if gpus is not None and gpus.buses:
            self.buses = self.buses or gpus.buses
        found = judge(await measure(self._run_folder, gpus), self._gpus_wanted)
        news = [(finding, detail) for finding, detail in found if finding.error not in self._known]
        self._known = {finding.error for finding, _ in found}
        for finding, detail in news:
            log.warning("this node: %s: %s", finding.error, detail)
        now = time.time()
        return tuple(Noticed(finding, Method.NODE_HEALTH, detail, now) for finding, detail in news)

    def on_snapshot(self, snapshot: JobSnapshot) -> None:
        """The nodes of the job as the coordinator sees them: a loss is a reason to look at one's own."""
        lost = {member.node for member in snapshot.members if member.role is Role.LOST}
        if lost - self._lost and (self._again is None or self._again.done()):
            self._again = asyncio.create_task(self._check_again(), name="node health")
        self._lost = lost

    def close(self) -> None:
        """Look no more."""
        if self._again is not None:
            self._again.cancel()

    async def _check_again(self) -> None:
        for noticed in await self.check():
            self._report(noticed)


def _gpus_of_job() -> int | None:
    """GPUs that Slurm gave the job on this node; None outside of Slurm and where it does not say."""
    try:
        return read_job_environment(os.environ).gpus_on_node
    except SlurmError:
        return None

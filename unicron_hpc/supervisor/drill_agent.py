"""The agent's part in drills: takes the owner's order, and makes the fault or has it made."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from unicron_hpc.supervisor import drill_notes
from unicron_hpc.supervisor.drill_child import Task, free_bytes
from unicron_hpc.supervisor.drill_kinds import KINDS, ORDER, Kind, Site
from unicron_hpc.supervisor.local_ranks import LocalRanks
from unicron_hpc.supervisor.messages import Drill, RankState
from unicron_hpc.supervisor.rank_messages import Inject

log = logging.getLogger(__name__)

#: A file system on which more than this would have to be written to fill it is not ours to fill, in bytes.
MOST_BALLAST = 2 * 2**30
#: How far above a cgroup's limit a rank goes in search of it, in bytes.
_BEYOND_LIMIT = 256 * 2**20
#: A cgroup without a limit says a number of this order; both versions' files, and what moves a process.
_NO_LIMIT = 2**60
_LIMITS = ("memory.max", "memory.limit_in_bytes")


class Refused(Exception):
    """A drill that is not made, and why."""


class Drills:
    """All drills on this node.

    Parameters
    ----------
    run_folder, node
        As in the agent.
    allowed
        Whether `recovery.drills` lets anything fail on purpose.
    ranks
        This node's ranks.
    """

    def __init__(self, run_folder: Path, node: str, allowed: bool, ranks: LocalRanks) -> None:
        self._run_folder = run_folder
        self._node = node
        self._allowed = allowed
        self._ranks = ranks
        self._children: list[subprocess.Popen[bytes]] = []

    def take(self, drill: Drill) -> None:
        """Obey an order, once; whatever keeps us from it is noted in the run folder."""
        if not ORDER.fullmatch(drill.order) or drill_notes.is_known(self._run_folder, drill.order):
            return
        self._children = [child for child in self._children if child.poll() is None]
        log.warning("drill %s (%s) ordered: %s", drill.name, drill.order, drill)
        try:
            self._begin(drill)
        except Refused as refusal:
            log.warning("drill %s refused: %s", drill.order, refusal)
            self._note(drill, "refused", str(refusal))

    def _begin(self, drill: Drill) -> None:
        kind = KINDS.get(drill.name)
        if kind is None:
            raise Refused(f"the job's unicron_hpc has no drill {drill.name!r}")
        if not self._allowed:
            raise Refused("recovery.drills is false in the job's train.yaml")
        if not 0 <= drill.seconds <= 3600:
            raise Refused("a drill lasts an hour at most")
        rank = self._rank(drill, kind)
        if kind.site is Site.RANK and rank is not None:
            self._inject(drill, rank)
        elif drill.name == "kill" and rank is not None:
            self._kill(drill, rank)
        else:
            if drill.name == "disk-full":
                self._check_disk(drill)
            pid = os.getpid() if rank is None else rank.pid
            self._start_child(drill, pid, family=drill.name.startswith("node-"))

    def _rank(self, drill: Drill, kind: Kind) -> RankState | None:
        if not kind.of_rank:
            return None
        for rank in self._ranks.states():
            if (rank.address.task, rank.address.seat.slot, rank.pid) == (drill.task, drill.slot, drill.pid):
                return rank
        raise Refused(f"process {drill.pid} is no rank on {self._node} (any more); look at `unicron status`")

    def _inject(self, drill: Drill, rank: RankState) -> None:
        amount = 0
        if drill.name == "oom" and drill.text:
            amount = _enter_cgroup(Path(drill.text), rank.pid)
        self._note(drill, "armed", f"for iteration {drill.iteration or 'the next'} of process {rank.pid}")
        order = Inject(drill.order, drill.name, drill.iteration, drill.seconds, drill.text, amount)
        self._ranks.tell(rank.address, order)

    def _kill(self, drill: Drill, rank: RankState) -> None:
        descriptor = os.pidfd_open(rank.pid)
        try:
            self._note(drill, "injected", f"SIGKILL to process {rank.pid}")
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)

    def _check_disk(self, drill: Drill) -> None:
        free = free_bytes(self._run_folder)
        if free - drill.amount > MOST_BALLAST:
            raise Refused(
                f"the run folder's file system has {free / 2**30:.1f} GiB free, others may want them;"
                f" only one with less than {MOST_BALLAST / 2**30:.0f} GiB is filled"
            )
        if drill.seconds == 0:
            raise Refused("a full disk needs --seconds: nobody would empty it")

    def _start_child(self, drill: Drill, pid: int, *, family: bool) -> None:
        task = Task(
            run_folder=str(self._run_folder),
            order=drill.order,
            name=drill.name,
            node=self._node,
            pid=pid,
            family=family,
            seconds=drill.seconds,
            amount=drill.amount,
        )
        self._note(drill, "armed", f"for process {pid}{' and all below it' if family else ''}")
        words = [
            sys.executable,
            "-m",
            "unicron_hpc.supervisor.drill_child",
            msgspec.json.encode(task).decode(),
        ]
        # It must outlive this agent, so nobody waits for it; it has an end of its own. But Linux deals
        # processors to sessions first (sched_autogroup): who takes the rank's must be in the rank's session.
        apart = drill.name != "busy"
        self._children.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=apart))

    def _note(self, drill: Drill, state: drill_notes.State, detail: str) -> None:
        drill_notes.write(self._run_folder, drill.order, drill.name, self._node, state, detail)


def _enter_cgroup(folder: Path, pid: int) -> int:
    """Put a process under a memory limit, if it is not there yet.

    Returns
    -------
    int
        How much it may at most try to take, in bytes.

    Raises
    ------
    Refused
        When that is no cgroup with a limit, or not ours to use.
    """
    for name in _LIMITS:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if not text.isdecimal() and text != "max":
            continue
        if text == "max" or int(text) > _NO_LIMIT:
            raise Refused(f"{folder} sets no memory limit")
        try:
            if str(pid) not in (folder / "cgroup.procs").read_text().split():
                (folder / "cgroup.procs").write_text(f"{pid}\n")
        except OSError as error:
            raise Refused(f"process {pid} cannot be moved into {folder}: {error}") from error
        return int(text) + _BEYOND_LIMIT
    raise Refused(f"{folder} is no memory cgroup")

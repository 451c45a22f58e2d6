"""The coordinator: the one agent that decides. Keeps membership, hands events to tasks, ends the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unicron_hpc.config import Settings
from unicron_hpc.detect.severity import LOST_CONNECTION, Finding, Method, Severity
from unicron_hpc.planner.from_settings import task_work
from unicron_hpc.planner.work import NodeSlots
from unicron_hpc.report.journal import Journal
from unicron_hpc.report.summary import write_summary
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.commit_log import CommitLog
from unicron_hpc.supervisor.draining import Drains
from unicron_hpc.supervisor.election import Verdict, verdict
from unicron_hpc.supervisor.ending import end_orphaned_job
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.members import Members, Node
from unicron_hpc.supervisor.messages import (
    Beat,
    Body,
    DataReady,
    Finish,
    Heartbeat,
    JobSnapshot,
    Join,
    PrepareData,
    RankExited,
    RankSaid,
    RankStarted,
    Role,
    StartRank,
    StopRank,
    TellRank,
)
from unicron_hpc.supervisor.rank_messages import RankAddress, ToRank
from unicron_hpc.supervisor.task_control import TaskControl

log = logging.getLogger(__name__)

#: Once all active nodes are there, how long spares and stragglers may still take to join, in seconds.
JOIN_GRACE = 15.0


class Coordinator:
    """Decides for the whole job, as long as its agent is the leader.

    Parameters
    ----------
    run_folder, node, settings, allocation
        As in the agent.
    snapshot, predecessor
        What the coordinator before had decided, and who that was; None at the start of the job.
    post
        Sends a message to a node's agent.
    forget
        Drops the connection to a lost node.
    addresses
        Reads where agents listen.
    own_node_well
        Asks slurmctld whether it has contact with this node.
    """

    def __init__(
        self,
        *,
        run_folder: Path,
        node: str,
        settings: Settings,
        allocation: Allocation,
        snapshot: JobSnapshot | None,
        predecessor: str | None,
        post: Callable[[str, Body], None],
        forget: Callable[[str], None],
        addresses: Callable[[], Mapping[str, str]],
        own_node_well: Callable[[], bool],
    ) -> None:
        self.journal = Journal(run_folder)
        self.commits = CommitLog(run_folder)
        self._run_folder = run_folder
        self._node = node
        self._settings = settings
        self._allocation = allocation
        self._snapshot = snapshot
        self._predecessor = predecessor
        self._post = post
        self._forget = forget
        self._addresses = addresses
        self._own_node_well = own_node_well
        self._members = Members(allocation.nodes, allocation.active)
        self._drains = Drains(allocation, self.journal, settings.recovery.drain)
        self._epoch = snapshot.epoch if snapshot else 0
        self._incidents = snapshot.incidents if snapshot else 0
        self._started = snapshot.started if snapshot else time.time()
        self._begun = time.monotonic()
        self._last_join = self._begun
        self._last_beat = 0.0
        self._training = snapshot is not None and any(task.layout is not None for task in snapshot.tasks)
        self._data_ready: set[str] = {t.name for t in snapshot.tasks if t.data_ready} if snapshot else set()
        self._data_asked: set[str] = set()
        self._over = False
        self._unconfirmed: float | None = None
        self._unheard: set[str] = set()
        self._takeover_until: float | None = None
        self._held_back: list[tuple[str, Body]] = []
        self._ending: asyncio.Task[None] | None = None
        self._tasks: dict[str, TaskControl] = {}
        for task in settings.task_list():
            work = task_work(task, settings.slurm)
            self._tasks[task.name] = TaskControl(task, work, settings.recovery, self)

    def start(self, term: int) -> None:
        """Take office."""
        now = time.monotonic()
        self.journal.write("coordinator_elected", self._epoch, node=self._node, term=term)
        if self._snapshot is None:
            self.journal.write(
                "job_started",
                0,
                job_id=self._allocation.job_id,
                run_dir=str(self._run_folder),
                nodes=list(self._allocation.nodes),
                active=self._allocation.active,
                tasks=list(self._tasks),
                train_iters={task.name: task.train.train_iters for task in self._settings.task_list()},
            )
            return
        self._members.adopt(self._snapshot.members, now)
        for known in self._snapshot.tasks:
            if known.name in self._tasks:
                self._tasks[known.name].adopt(known)
        self._unheard = {node.name for node in self._members.alive()}
        self._takeover_until = now + self._settings.recovery.node_timeout
        self.changed()

    def close(self) -> None:
        """Leave office; files are closed, nothing is decided any more."""
        self._over = True
        for task in self._tasks.values():
            task.close()
        self._drains.close()
        self.commits.close()
        self.journal.close()

    # ------------------------------------------------------------ messages and time

    def handle(self, sender: str, body: Body) -> None:
        """Take a message of an agent."""
        node = self._members.get(sender)
        if node is None:
            log.warning("message of %s, which is no node of this job", sender)
            return
        if node.role is Role.LOST:
            if isinstance(body, Join | Heartbeat):
                self._dismiss(node, body)
            return
        node.heard = time.monotonic()
        if self._over:
            return
        waiting = self._unconfirmed is not None or self._takeover_until is not None
        if waiting and not isinstance(body, Heartbeat | Join):
            self._held_back.append((sender, body))
            return
        self._dispatch(node, body)

    def _dispatch(self, node: Node, body: Body) -> None:
        match body:
            case Join():
                self._on_join(node, body)
            case Heartbeat(warm, commits):
                node.warm = warm
                for name, epoch, committed in commits:
                    if name in self._tasks:
                        self._tasks[name].on_commit(epoch, committed)
            case RankStarted() | RankExited() | RankSaid():
                task = self._tasks.get(body.rank.task)
                if task:
                    if isinstance(body, RankStarted):
                        task.on_started(body)
                    elif isinstance(body, RankExited):
                        task.on_exited(body)
                    else:
                        task.on_said(body)
            case DataReady(name, error):
                if error:
                    self.fail(f"the data of task {name} could not be prepared", error)
                else:
                    self._data_ready.add(name)
                    self.changed()

    def tick(self, now: float) -> None:
        """Look at what has not happened."""
        if self._over:
            return
        recovery = self._settings.recovery
        if now - self._last_beat >= recovery.heartbeat_interval:
            self._last_beat = now
            for node in self._members:
                if node.role is not Role.LOST and node.name != self._node:
                    self._post(node.name, Beat())
        if self._unconfirmed is not None:
            self._confirm(now)
            return
        if self._takeover_until is not None:
            if self._unheard - {self._predecessor} and now < self._takeover_until:
                return
            self._take_over()
        for node in self._members.silent(now, recovery.node_timeout):
            if node.name != self._node:
                silence = f"no heartbeat for {now - (node.heard or now):.2f} s"
                self._lose(node, Evidence(LOST_CONNECTION, Method.NODE_HEALTH, node.name, None, silence))
        if self._over:
            return
        if not self._training:
            self._try_to_start(now)
        for task in self._tasks.values():
            task.tick(now)

    def _take_over(self) -> None:
        """Everybody has told what runs on his node (or had the time to): go on from there."""
        self._takeover_until = None
        predecessor = self._members.get(self._predecessor) if self._predecessor else None
        evidence = Evidence(
            LOST_CONNECTION, Method.NODE_HEALTH, self._predecessor or "", None, "the coordinator went silent"
        )
        if predecessor is not None and predecessor.name in self._unheard:
            self._lose(predecessor, evidence)
        if self._training and not self._over:
            # The predecessor may have died in the middle of a transition: only a new epoch is certain.
            for task in self._tasks.values():
                task.on_coordinator_change(evidence)
        self._replay()

    def _replay(self) -> None:
        held, self._held_back = self._held_back, []
        for sender, body in held:
            self.handle(sender, body)

    def stalled(self, seconds: float) -> None:
        """This process did not run for a while: silence proves nothing, and our office may be gone."""
        log.warning("this agent did not run for %.2f s", seconds)
        self._members.shift(seconds)
        for task in self._tasks.values():
            task.shift(seconds)
        if seconds > self._settings.recovery.node_timeout / 2 and self._unconfirmed is None:
            self._unconfirmed = time.monotonic()

    def _confirm(self, now: float) -> None:
        """After a stall: decide and write nothing until a majority has spoken to us in our term."""
        assert self._unconfirmed is not None  # called only then
        alive = self._members.alive()
        votes = self._members.heard_since(self._unconfirmed)
        if verdict(votes, len(alive)) is Verdict.WON:
            self._unconfirmed = None
            self._replay()
        elif now - self._unconfirmed > self._settings.recovery.startup_timeout:
            self.fail("this coordinator lost contact with the majority of its nodes")

    def _on_join(self, node: Node, join: Join) -> None:
        first = not node.joined or node.agent_pid != join.agent_pid
        self._unheard.discard(node.name)
        node.address, node.agent_pid, node.slots = join.address, join.agent_pid, join.slots
        node.heard = time.monotonic()
        node.warm = join.warm
        self._last_join = node.heard
        self._epoch = max(self._epoch, join.epoch)
        if first:
            self.journal.write(
                "agent_joined",
                self._epoch,
                node=node.name,
                pid=join.agent_pid,
                role=node.role.value,
                address=join.address,
            )
        for rank in join.ranks:
            if rank.address.task in self._tasks:
                self._tasks[rank.address.task].adopt_rank(rank.address, rank.pid)
        for name, epoch, committed in join.commits:
            if name in self._tasks:
                self._tasks[name].on_commit(epoch, committed)
        self.changed()

    def _dismiss(self, node: Node, body: Join | Heartbeat) -> None:
        """A node that was taken out speaks again: its ranks are of an old epoch, its agent shall end."""
        address = body.address if isinstance(body, Join) else self._addresses().get(node.name, "")
        if address and not self._over:
            self._post(node.name, self._job_snapshot())
            self._post(node.name, Finish(3, f"{node.name} was taken out of the job while it was silent"))

    # ------------------------------------------------------------ start

    def _try_to_start(self, now: float) -> None:
        recovery = self._settings.recovery
        alive = self._members.alive()
        waiting = self._members.waiting()
        if not alive:
            return
        for task in self._tasks.values():
            if task.name not in self._data_ready | self._data_asked:
                self._post(self._node, PrepareData(task.name))
                self._data_asked.add(task.name)
        if waiting:
            enough = len(alive) >= self._allocation.active
            patient = (
                now - self._last_join < JOIN_GRACE if enough else now - self._begun < recovery.startup_timeout
            )
            if patient:
                return
        if len(self._data_ready) < len(self._tasks):
            return
        self._training = True
        for node in waiting:
            node.heard = now
            finding = Finding("agent did not start", Severity.SEV1)
            self._lose(node, Evidence(finding, Method.NODE_HEALTH, node.name, None, "never joined"))
        self._fill_active()
        for task in self._tasks.values():
            task.begin()

    def _fill_active(self) -> None:
        """Spares stand in for active nodes that never came."""
        alive = self._members.alive()
        short = self._allocation.active - sum(1 for node in alive if node.role is Role.ACTIVE)
        for node in [node for node in alive if node.role is Role.SPARE][: max(0, short)]:
            node.role = Role.ACTIVE

    # ------------------------------------------------------------ nodes

    def _lose(self, node: Node, evidence: Evidence) -> None:
        """Take a node out of the plan for good."""
        if node.role is Role.LOST:
            return
        before = len(self._members.alive())
        node.role = Role.LOST
        left = len(self._members.alive())
        self.journal.write(
            "agent_lost", self._epoch, node=node.name, pid=node.agent_pid, reason=evidence.detail
        )
        log.warning("node %s is lost: %s", node.name, evidence.detail)
        self._forget(node.name)
        if not self._may_go_on(left, before):
            self.fail(
                f"only {left} of {before} nodes are in contact; the others may be alive and training",
                f"last lost: {node.name} ({evidence.detail})",
            )
            return
        if left < self._settings.recovery.min_nodes:
            self.fail(
                f"{left} nodes are left, recovery.min_nodes is {self._settings.recovery.min_nodes}",
                "Resubmit with `unicron-sbatch`: training goes on from the newest checkpoint.",
            )
            return
        self._drains.request(node.name, evidence.finding.error, self._epoch)
        self.changed()
        if self._training:
            for task in self._tasks.values():
                task.on_node_lost(node.name, evidence)

    def _may_go_on(self, left: int, before: int) -> bool:
        """Whether this side holds the majority (with slurmctld's word in a tie)."""
        judged = verdict(left, before)
        return judged is Verdict.WON or (judged is Verdict.TIED and self._own_node_well())

    # ------------------------------------------------------------ what tasks ask (Hub)

    def tell(self, rank: RankAddress, order: ToRank) -> None:
        self._post(rank.seat.node, TellRank(rank, order))

    def start_rank(self, rank: RankAddress) -> None:
        self._post(rank.seat.node, StartRank(rank))

    def stop_rank(self, rank: RankAddress) -> None:
        self._post(rank.seat.node, StopRank(rank))

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def next_incident(self) -> int:
        self._incidents += 1
        if self._incidents > self._settings.recovery.max_incidents:
            self.fail(f"more than recovery.max_incidents = {self._settings.recovery.max_incidents} incidents")
        return self._incidents

    def active_nodes(self, task: str) -> Sequence[NodeSlots]:
        return [NodeSlots(n.name, n.slots) for n in self._members.alive() if n.role is Role.ACTIVE]

    def spare_nodes(self, task: str) -> Sequence[NodeSlots]:
        spares = [n for n in self._members.alive() if n.role is Role.SPARE]
        return [NodeSlots(n.name, n.slots) for n in sorted(spares, key=lambda n: not n.warm)]

    def node_is_bad(self, node: str, reason: str) -> None:
        """A node that keeps failing is taken out although its agent lives."""
        member = self._members.get(node)
        if member is None or member.role is Role.LOST:
            return
        self._post(node, Finish(3, f"{node} was taken out: {reason}"))
        finding = Finding("ranks keep failing on this node", Severity.SEV1)
        self._lose(member, Evidence(finding, Method.PROCESS, node, None, reason))

    def changed(self) -> None:
        """Roles follow the layouts; everybody gets the new snapshot."""
        if self._training:
            used = {
                seat.node
                for t in self._tasks.values()
                if t.layout and not t.finished
                for seat in t.layout.seats
            }
            for node in self._members:
                if node.role is not Role.LOST and used:
                    node.role = Role.ACTIVE if node.name in used else Role.SPARE
        snapshot = self._job_snapshot()
        for node in self._members:
            if node.role is not Role.LOST and (node.joined or node.name == self._node):
                self._post(node.name, snapshot)

    def _job_snapshot(self) -> JobSnapshot:
        return JobSnapshot(
            coordinator=self._node,
            epoch=self._epoch,
            members=self._members.snapshot(),
            tasks=tuple(t.snapshot(t.name in self._data_ready) for t in self._tasks.values()),
            incidents=self._incidents,
            started=self._started,
        )

    # ------------------------------------------------------------ the end

    def task_finished(self, task: str) -> None:
        self.journal.write("task_finished", self._epoch, task=task, iteration=self.commits.last(task))
        self.changed()
        if all(control.finished for control in self._tasks.values()):
            self._finish(0, "finished", "")

    def fail(self, cause: str, detail: str = "") -> None:
        """End the run as failed; the cause goes to stderr, the journal and the summary."""
        if self._over:
            return
        print(f"unicron: FAILED: {cause}\n{detail}".rstrip(), file=sys.stderr, flush=True)
        self._finish(1, "failed", cause, detail)

    def stop_requested(self, reason: str) -> None:
        """The user or Slurm wants the job to end."""
        if not self._over:
            self._finish(1, "cancelled", reason)

    def _finish(self, exit_code: int, state: str, cause: str, detail: str = "") -> None:
        if self._over:
            return
        self._over = True
        log.info("the run ends: %s %s", state, cause)
        for task in self._tasks.values():
            task.close()
            self.commits.flush(task.name)
        self.journal.write(
            "job_finished", self._epoch, state=state, exit_code=exit_code, cause=cause, detail=detail[-4000:]
        )
        write_summary(self._run_folder, state=state, exit_code=exit_code, cause=cause, started=self._started)
        for node in self._members:
            if node.role is not Role.LOST and node.joined and node.name != self._node:
                self._post(node.name, Finish(exit_code, cause or state))
        self._ending = asyncio.create_task(self._end_self(exit_code, cause or state))

    async def _end_self(self, exit_code: int, reason: str) -> None:
        await self._drains.wait(5.0)
        batch = self._members.get(self._allocation.batch_node)
        if batch is not None and batch.role is Role.LOST:
            # Nobody is left to end the job by ending the batch script.
            with contextlib.suppress(Exception):
                await asyncio.to_thread(end_orphaned_job, self._allocation.job_id, exit_code)
        self._post(self._node, Finish(exit_code, reason))

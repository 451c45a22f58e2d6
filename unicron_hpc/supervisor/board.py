"""The job as it stands: its nodes, its tasks, and what is decided about them."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from unicron_hpc.config import Settings
from unicron_hpc.detect.handling import Decision, Spent, exhausted
from unicron_hpc.detect.severity import Blame, Finding, Method, Severity
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.from_settings import task_work
from unicron_hpc.report.journal import Journal
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.commit_log import CommitLog
from unicron_hpc.supervisor.draining import Drains
from unicron_hpc.supervisor.ending import Ending
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.last_checkpoint import LastCheckpoint
from unicron_hpc.supervisor.losses import Losses
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import (
    Body,
    Finish,
    JobSnapshot,
    Noticed,
    Role,
    StartRank,
    StopRank,
    TellRank,
)
from unicron_hpc.supervisor.node_faults import NodeFaults
from unicron_hpc.supervisor.node_history import NodeHistory
from unicron_hpc.supervisor.planning import Planning
from unicron_hpc.supervisor.quorum import EXIT_MINORITY, Quorum, Right
from unicron_hpc.supervisor.rank_messages import RankAddress, ToRank
from unicron_hpc.supervisor.stragglers import Stragglers
from unicron_hpc.supervisor.task_control import TaskControl
from unicron_hpc.supervisor.watch_messages import DumpStacks, StacksDumped
from unicron_hpc.supervisor.witness import failure_domains

log = logging.getLogger(__name__)

#: Longest time that a coordinator whose own node is bad stays to have that dealt with, in seconds.
LEAVE_OFFICE = 20.0


class Board:
    """Nodes and tasks of the job, and the decisions about them; what the tasks know as their `Hub`.

    Parameters
    ----------
    run_folder, node, settings, allocation
        As in the agent.
    snapshot
        What the coordinator before had decided; None at the start of the job.
    post
        Sends a message to a node's agent.
    forget
        Drops the connection to a lost node.
    witness
        Asks slurmctld whether these nodes are lost to it, and this one is not (blocks; used in a thread).
    """

    def __init__(
        self,
        *,
        run_folder: Path,
        node: str,
        settings: Settings,
        allocation: Allocation,
        snapshot: JobSnapshot | None,
        post: Callable[[str, Body], None],
        forget: Callable[[str], None],
        witness: Callable[[Sequence[str]], bool],
    ) -> None:
        self.journal = Journal(run_folder)
        self.commits = CommitLog(run_folder)
        self.members = Members(allocation.nodes, allocation.active)
        self.node = node
        self.over = False  # how the run ends is decided, or is not ours to decide any more
        self.training = snapshot is not None and any(task.layout is not None for task in snapshot.tasks)
        self.epoch = snapshot.epoch if snapshot else 0
        self.data_ready: set[str] = {t.name for t in snapshot.tasks if t.data_ready} if snapshot else set()
        self._recovery = settings.recovery
        self._post = post
        self._incidents = snapshot.incidents if snapshot else 0
        self._started = snapshot.started if snapshot else time.time()
        self.history = NodeHistory()
        drains = Drains(allocation, self.journal, settings.recovery, run_folder, self._drain_settled)
        self._drains = drains
        self._faults = NodeFaults(settings.recovery, self.journal, drains)
        self._leaving: asyncio.Task[None] | None = None
        self._ending = Ending(
            run_folder=run_folder,
            allocation=allocation,
            members=self.members,
            journal=self.journal,
            commits=self.commits,
            drains=drains,
            node=node,
            post=post,
            started=self._started,
        )
        self._quorum = Quorum(
            allocation.nodes,
            witness,
            settings.recovery.quorum_timeout,
            one_machine=not allocation.on_slurm,
        )
        self._losses = Losses(
            node=node,
            members=self.members,
            quorum=self._quorum,
            recovery=settings.recovery,
            journal=self.journal,
            forget=forget,
        )
        works = {task.name: task_work(task, settings.slurm) for task in settings.task_list()}
        self.tasks = {
            task.name: TaskControl(task, works[task.name], settings.recovery, self)
            for task in settings.task_list()
        }
        self._planning = Planning(
            self.tasks,
            works,
            allocation.active,
            self.members,
            self.journal,
            lambda: failure_domains(allocation),
        )
        self.last_checkpoint = LastCheckpoint(self.journal, lambda cause: self.finish(1, "cancelled", cause))
        self._stragglers = Stragglers(
            settings.recovery,
            self.journal,
            self._planning.reckon_with,
            self._planning.better_without,
            self._slow_out,
            lambda task: self.may_decide and self._planning.share_anew(task),
        )

    def adopt(self, snapshot: JobSnapshot, now: float) -> None:
        """Go on from what a predecessor had decided."""
        self.members.adopt(snapshot.members, now)
        for known in snapshot.tasks:
            if known.name in self.tasks:
                self.tasks[known.name].adopt(known)
        self._planning.adopt(snapshot.tasks)
        self.history.adopt(snapshot.failures)
        self._drains.adopt(snapshot.drains)

    def take_over(self) -> None:
        """Everybody has been heard: see to what the predecessor had begun beside its recoveries."""
        self._drains.resume()

    def close(self) -> None:
        """Decide nothing any more; files are closed."""
        self.over = True
        if self._leaving:
            self._leaving.cancel()
        for task in self.tasks.values():
            task.close()
        self._drains.close()
        self._quorum.close()
        self._losses.close()
        self._planning.close()
        self._stragglers.close()
        self.commits.close()
        self.journal.close()

    @property
    def may_decide(self) -> bool:
        """Whether the nodes in contact are enough to decide."""
        return not self.over and not self._quorum.short

    # ------------------------------------------------------------ nodes

    def begin(self, absent: Sequence[str]) -> None:
        """Begin to train; nodes in `absent` never came.

        Fewer than half of the allocation do not begin: the others might just be out of sight.
        """
        finding = Finding("agent did not start", Severity.SEV1, Blame.NODE)
        self.lose({n: Evidence(finding, Method.NODE_HEALTH, n, None, "never joined") for n in absent})
        self.training = True
        here, everybody = len(self.members.alive()), sum(1 for _ in self.members)
        if 2 * here < everybody:
            self.fail(
                f"only {here} of {everybody} agents started within recovery.startup_timeout",
                "See logs/ in the run folder and the job's log for the other nodes.",
            )
        if not self.over:
            self._quorum.commit(node.name for node in self.members.alive())
            self._or_fail(self._planning.begin)

    def lose(self, lost: Mapping[str, Evidence], known: Mapping[str, Decision] | None = None) -> None:
        """Take nodes out of the plan for good, and have the tasks move.

        Parameters
        ----------
        known
            What was decided about nodes already, by the task whose rank told of it.
        """
        out = self._losses.take_out(lost, self.epoch)
        left = len(self.members.alive())
        if left < self._recovery.min_nodes:
            self.fail(
                f"{left} nodes are left, recovery.min_nodes is {self._recovery.min_nodes}",
                "Resubmit with `unicron-sbatch`: training goes on from the newest checkpoint.",
            )
        if self.training and not self.over:
            self._or_fail(lambda: self._planning.after_loss(lost, self.epoch))
        incidents = {node: self._incident_of(lost[node]) for node in out}
        self._faults.out(out, lost, known or {}, incidents, self.epoch)
        if self.training and not self.over:
            self.changed()

    def _incident_of(self, evidence: Evidence) -> int | None:
        numbers = (task.incident_of(evidence) for task in self.tasks.values())
        return next((number for number in numbers if number is not None), None)

    def _or_fail(self, decide: Callable[[], None]) -> None:
        """Make a decision; where none is possible, the run ends with the reason."""
        try:
            decide()
        except PlanError as error:
            self.fail(error.message, error.hint)

    def look_for_lost(self, now: float) -> None:
        """Take silent nodes out, if those that are left may decide without them."""
        right, lost = self._losses.look(now, deciding=self.training)
        if lost:
            self.lose(lost)
        for task in self.tasks.values():
            if right is Right.STOP:
                task.suspend()
            elif right is Right.GO_ON:
                task.resume()
        if right is Right.GIVE_UP:
            left, committed = len(self.members.alive()), len(self._quorum.committed)
            self.desert(f"too few of {left} nodes are in contact to decide for {committed}")

    def look_for_slow(self, now: float) -> None:
        """Compare the nodes of every task that runs."""
        running = {name: task.running(now) for name, task in self.tasks.items()}
        self._stragglers.look({n: r for n, r in running.items() if r is not None}, self.epoch, now)

    def _slow_out(self, evidence: Evidence) -> None:
        """A task is better off without a node."""
        if self.may_decide:
            self.node_is_bad(evidence, self._faults.decide(evidence))

    def desert(self, reason: str) -> None:
        """This side may not decide any more: end without a word in the run folder."""
        self.over = True
        log.error("%s; this side ends and writes nothing", reason)
        print(f"unicron on {self.node}: {reason}; the others decide", file=sys.stderr, flush=True)
        for task in self.tasks.values():
            task.close()
        self._post(self.node, Finish(EXIT_MINORITY, reason))

    # ------------------------------------------------------------ what tasks ask (Hub)

    def tell(self, rank: RankAddress, order: ToRank) -> None:
        self._post(rank.seat.node, TellRank(rank, order))

    def start_rank(self, rank: RankAddress) -> None:
        self._post(rank.seat.node, StartRank(rank))

    def stop_rank(self, rank: RankAddress) -> None:
        self._post(rank.seat.node, StopRank(rank))

    def dump_stacks(self, task: str, epoch: int, nodes: Collection[str]) -> None:
        for node in nodes:
            self._post(node, DumpStacks(task, epoch))

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def next_incident(self) -> int:
        self._incidents += 1
        if exhausted(Spent(incidents=self._incidents), self._recovery):
            self.fail(f"more than recovery.max_incidents = {self._recovery.max_incidents} incidents")
        return self._incidents

    def node_is_bad(self, evidence: Evidence, decision: Decision) -> bool:
        """Take a node out although its agent lives; False where it is out already."""
        node = evidence.node
        member = self.members.get(node)
        if member is None or member.role is Role.LOST:
            return False
        leave = Finish(3, f"{node} was taken out: {evidence.brief} ({decision.rule})")
        if node == self.node:
            for task in self.tasks.values():
                task.stop_ranks_on(node)
            self._leaving = asyncio.create_task(self._leave_office(leave), name="leaving")
        else:
            self._post(node, leave)
        self.lose({node: evidence}, {node: decision})
        if self.may_decide:
            # It is in contact and told to leave: it took part in this decision, unlike a silent one.
            self._quorum.commit(node.name for node in self.members.alive())
        return True

    async def _leave_office(self, leave: Finish) -> None:
        """Our own node is bad: the successor would not know why, so what is known is done first."""
        await self._drains.settled(self.node, LEAVE_OFFICE)
        if not self.over:
            self._post(self.node, leave)

    def node_was_bad(self, node: str, evidence: Evidence) -> None:
        """Training goes on without a node that was out on trial: it was the node."""
        self._drains.drain(node, evidence, self.epoch)

    def _drain_settled(self) -> None:
        if not self.over:
            self.changed()

    def on_noticed(self, node: str, noticed: Noticed) -> None:
        """An agent has found something out about its node."""
        evidence = Evidence(noticed.finding, noticed.method, node, None, noticed.detail, noticed.time)
        if noticed.finding.severity is Severity.SEV1:
            self.node_is_bad(evidence, self._faults.decide(evidence))
        elif noticed.finding.severity is Severity.INFO or not any(
            task.on_node_noticed(node, noticed) for task in self.tasks.values()
        ):
            self.warn(evidence)

    def warn(self, evidence: Evidence) -> None:
        self._faults.warn(evidence, self.epoch)

    def on_stacks(self, node: str, dumped: StacksDumped) -> None:
        """The stacks of a task's ranks on a node, from before anything was done to them."""
        self.journal.write(
            "stacks_dumped",
            dumped.epoch,
            task=dumped.task,
            node=node,
            ranks=[
                {"slot": r.rank.seat.slot, "pid": r.pid, "state": r.state, "stacks": r.stacks, "file": r.file}
                for r in dumped.ranks
            ],
        )

    def epoch_runs(self) -> None:
        """All who are here have taken part in a decision: they are the membership that the next one needs."""
        self._quorum.commit(node.name for node in self.members.alive())
        self._planning.refresh(self.epoch)

    def changed(self) -> None:
        """Roles follow the layouts; everybody gets the new snapshot."""
        layouts = [task.layout for task in self.tasks.values() if task.layout and not task.finished]
        if self.training and layouts:
            self.members.assign_roles({seat.node for layout in layouts for seat in layout.seats})
        snapshot = self.snapshot()
        for node in self.members.present(self.node):
            self._post(node.name, snapshot)

    def snapshot(self) -> JobSnapshot:
        """All that a successor needs."""
        return JobSnapshot(
            coordinator=self.node,
            epoch=self.epoch,
            members=self.members.snapshot(),
            tasks=tuple(t.snapshot(t.name in self.data_ready) for t in self.tasks.values()),
            incidents=self._incidents,
            started=self._started,
            failures=self.history.since(time.time() - self._recovery.fault_window),
            drains=self._drains.owed,
        )

    # ------------------------------------------------------------ the end

    def task_finished(self, task: str) -> None:
        self.journal.write("task_finished", self.epoch, task=task, iteration=self.commits.last(task))
        self.changed()
        if all(control.finished for control in self.tasks.values()):
            self.finish(0, "finished")
        else:
            self._or_fail(lambda: self._planning.after_finish(task, self.epoch))

    def fail(self, cause: str, detail: str = "") -> None:
        """End the run as failed; the cause goes to stderr, the journal and the summary."""
        if self.over:
            return
        print(f"unicron: FAILED: {cause}\n{detail}".rstrip(), file=sys.stderr, flush=True)
        self.finish(1, "failed", cause, detail)

    def finish(self, exit_code: int, state: str, cause: str = "", detail: str = "") -> None:
        """End the run; the first word on it is the last."""
        if self.over:
            return
        self.over = True
        for task in self.tasks.values():
            task.close()
            self.commits.flush(task.name)
        self._ending.end(epoch=self.epoch, exit_code=exit_code, state=state, cause=cause, detail=detail)

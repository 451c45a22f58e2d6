"""The coordinator: the one agent that decides. Keeps membership, hands events to tasks, ends the run."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unicron_hpc.config import Settings
from unicron_hpc.detect.severity import LOST_CONNECTION, Finding, Method, Severity
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.from_settings import task_work
from unicron_hpc.report.journal import Journal
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.commit_log import CommitLog
from unicron_hpc.supervisor.draining import Drains
from unicron_hpc.supervisor.ending import Ending
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.members import Members, Node, silence
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
from unicron_hpc.supervisor.office import Office, Standing
from unicron_hpc.supervisor.planning import Planning
from unicron_hpc.supervisor.quorum import EXIT_MINORITY, Quorum, Right
from unicron_hpc.supervisor.rank_messages import RankAddress, ToRank
from unicron_hpc.supervisor.startup import Startup
from unicron_hpc.supervisor.task_control import TaskControl
from unicron_hpc.supervisor.witness import failure_domains

log = logging.getLogger(__name__)


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
    learn
        Takes where agents listen.
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
        predecessor: str | None,
        post: Callable[[str, Body], None],
        forget: Callable[[str], None],
        learn: Callable[[Mapping[str, str]], None],
        witness: Callable[[Sequence[str]], bool],
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
        self._learn = learn
        self._members = Members(allocation.nodes, allocation.active)
        self._drains = Drains(allocation, self.journal, settings.recovery.drain)
        self._epoch = snapshot.epoch if snapshot else 0
        self._incidents = snapshot.incidents if snapshot else 0
        self._started = snapshot.started if snapshot else time.time()
        self._last_beat = 0.0
        self._beat = 0
        self._training = snapshot is not None and any(task.layout is not None for task in snapshot.tasks)
        self._over = False
        self._ending = Ending(
            run_folder=run_folder,
            allocation=allocation,
            members=self._members,
            journal=self.journal,
            drains=self._drains,
            node=node,
            post=post,
            started=self._started,
        )
        recovery = settings.recovery
        self._quorum = Quorum(
            [node.name for node in self._members],
            witness,
            recovery.quorum_timeout,
            one_machine=not allocation.on_slurm,
        )
        self._office = Office(self._members, recovery.node_timeout, recovery.startup_timeout)
        self._startup = Startup(
            self._members,
            allocation.active,
            [task.name for task in settings.task_list()],
            recovery.startup_timeout,
            time.monotonic(),
        )
        works = {task.name: task_work(task, settings.slurm) for task in settings.task_list()}
        self._tasks = {
            task.name: TaskControl(task, works[task.name], recovery, self) for task in settings.task_list()
        }
        self._planning = Planning(
            self._tasks,
            works,
            allocation.active,
            self._members,
            self.journal,
            lambda: failure_domains(allocation),
        )

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
        self._startup.data_ready = {task.name for task in self._snapshot.tasks if task.data_ready}
        self._planning.adopt(self._snapshot.tasks)
        self._office.succeed(self._predecessor, now)
        self.epoch_runs()
        self.changed()

    def close(self) -> None:
        """Leave office; files are closed, nothing is decided any more."""
        self._over = True
        for task in self._tasks.values():
            task.close()
        self._drains.close()
        self._quorum.close()
        self._planning.close()
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
        if isinstance(body, Heartbeat):
            self._office.echoed(sender, body.beat)
        if not self._office.hold_back(sender, body):
            self._dispatch(node, body)

    def _dispatch(self, node: Node, body: Body) -> None:
        match body:
            case Join():
                self._on_join(node, body)
            case Heartbeat(warm, _, commits):
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
                    self._startup.data_ready.add(name)
                    self.changed()

    def tick(self, now: float) -> None:
        """Look at what has not happened."""
        if self._over:
            return
        recovery = self._settings.recovery
        if now - self._last_beat >= recovery.heartbeat_interval:
            self._last_beat = now
            self._beat += 1
            for node in self._members:
                if node.role is not Role.LOST:
                    self._post(node.name, Beat(self._beat))
        match self._office.look(now):
            case Standing.WAITING:
                return
            case Standing.DESERTED:
                self._desert("no majority came back after this agent was stopped")
                return
            case Standing.TAKING_OVER:
                self._take_over()
            case Standing.CONFIRMED:
                self._replay()
            case Standing.IN_OFFICE:
                pass
        self._look_for_lost(now)
        if self._over or self._quorum.short:
            return
        if not self._training:
            self._try_to_start(now)
        for task in self._tasks.values():
            task.tick(now)

    def _take_over(self) -> None:
        """Everybody has told what runs on his node (or had the time to): go on from there."""
        predecessor = self._members.get(self._predecessor) if self._predecessor else None
        evidence = Evidence(
            LOST_CONNECTION, Method.NODE_HEALTH, self._predecessor or "", None, "the coordinator went silent"
        )
        if predecessor is not None and self._office.is_silent(predecessor.name):
            self._lose({predecessor.name: evidence})
        if all(task.finished for task in self._tasks.values()):
            self._finish(0, "finished", "")  # the predecessor died before it could say so
        if self._training and not self._over:
            # The predecessor may have died in the middle of a transition: only a new epoch is certain.
            for task in self._tasks.values():
                task.on_coordinator_change(evidence)
        self._replay()

    def _replay(self) -> None:
        for sender, body in self._office.release():
            self.handle(sender, body)

    def stalled(self, seconds: float) -> None:
        """This process did not run for a while: silence proves nothing, and our office may be gone."""
        log.warning("this agent did not run for %.2f s", seconds)
        self._members.shift(seconds)
        for task in self._tasks.values():
            task.shift(seconds)
        if seconds > self._settings.recovery.node_timeout / 2:
            self._office.stalled(time.monotonic(), self._beat + 1)

    def _on_join(self, node: Node, join: Join) -> None:
        first = not node.joined or node.agent_pid != join.agent_pid
        self._office.heard(node.name)
        self._learn({node.name: join.address})
        node.address, node.agent_pid, node.slots = join.address, join.agent_pid, join.slots
        node.heard = time.monotonic()
        node.warm = join.warm
        self._startup.joined(node.heard)
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
        address = body.address if isinstance(body, Join) else node.address
        if address and not self._over:
            self._learn({node.name: address})  # forgotten when it was lost
            self._post(node.name, self._job_snapshot())
            self._post(node.name, Finish(3, f"{node.name} was taken out of the job while it was silent"))

    # ------------------------------------------------------------ start

    def _try_to_start(self, now: float) -> None:
        self._startup.prepare(lambda task: self._post(self._node, PrepareData(task)))
        if not self._startup.may_begin(now):
            return
        self._training = True
        for node in self._startup.stand_in():
            finding = Finding("agent did not start", Severity.SEV1)
            self._take_out(node, Evidence(finding, Method.NODE_HEALTH, node.name, None, "never joined"))
        if not self._over:
            self._or_fail(self._planning.begin)

    # ------------------------------------------------------------ nodes

    def _lose(self, lost: Mapping[str, Evidence]) -> None:
        """Take nodes out of the plan for good, and have the tasks move."""
        for name, evidence in lost.items():
            node = self._members.get(name)
            if node is not None:
                self._take_out(node, evidence)
        if self._training and not self._over:
            self._or_fail(lambda: self._planning.after_loss(lost, self._epoch))
            self.changed()

    def _take_out(self, node: Node, evidence: Evidence) -> None:
        node.role = Role.LOST
        left = len(self._members.alive())
        self.journal.write(
            "agent_lost", self._epoch, node=node.name, pid=node.agent_pid, reason=evidence.detail
        )
        log.warning("node %s is lost: %s", node.name, evidence.detail)
        self._forget(node.name)
        self._drains.request(node.name, evidence.finding.error, self._epoch)
        if left < self._settings.recovery.min_nodes:
            self.fail(
                f"{left} nodes are left, recovery.min_nodes is {self._settings.recovery.min_nodes}",
                "Resubmit with `unicron-sbatch`: training goes on from the newest checkpoint.",
            )

    def _or_fail(self, decide: Callable[[], None]) -> None:
        """Make a decision; where none is possible, the run ends with the reason."""
        try:
            decide()
        except PlanError as error:
            self.fail(error.message, error.hint)

    def _look_for_lost(self, now: float) -> None:
        """Take silent nodes out, if those that are left may decide without them."""
        recovery = self._settings.recovery
        silent = self._others_silent(now, recovery.node_timeout)
        here = {node.name for node in self._members.alive()}
        match self._quorum.judge(here - silent.keys(), now):
            case Right.GO_ON:
                # A cut network shows node by node: who is about to be silent might take the majority along.
                nearly = self._others_silent(now, recovery.node_timeout - 1.5 * recovery.heartbeat_interval)
                if silent and self._quorum.enough(here - nearly.keys()):
                    self._lose({name: silence(node, now) for name, node in silent.items()})
                for task in self._tasks.values():
                    task.resume()
            case Right.STOP:
                for task in self._tasks.values():
                    task.suspend()
            case Right.GIVE_UP:
                here_now = len(here) - len(silent)
                self._desert(f"only {here_now} of {len(self._quorum.committed)} nodes are in contact")

    def _others_silent(self, now: float, timeout: float) -> dict[str, Node]:
        return {n.name: n for n in self._members.silent(now, timeout) if n.name != self._node}

    def _desert(self, reason: str) -> None:
        """This side may not decide any more: end without a word in the run folder."""
        self._over = True
        log.error("%s; this side ends and writes nothing", reason)
        print(f"unicron on {self._node}: {reason}; the others decide", file=sys.stderr, flush=True)
        for task in self._tasks.values():
            task.close()
        self._post(self._node, Finish(EXIT_MINORITY, reason))

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

    def node_is_bad(self, node: str, reason: str) -> None:
        """A node that keeps failing is taken out although its agent lives."""
        member = self._members.get(node)
        if member is None or member.role is Role.LOST:
            return
        self._post(node, Finish(3, f"{node} was taken out: {reason}"))
        finding = Finding("ranks keep failing on this node", Severity.SEV1)
        self._lose({node: Evidence(finding, Method.PROCESS, node, None, reason)})

    def epoch_runs(self) -> None:
        """All who are here have taken part in a decision: they are the membership that the next one needs."""
        self._quorum.commit(node.name for node in self._members.alive())
        self._planning.refresh(self._epoch)

    def changed(self) -> None:
        """Roles follow the layouts; everybody gets the new snapshot."""
        layouts = [task.layout for task in self._tasks.values() if task.layout and not task.finished]
        if self._training and layouts:
            self._members.assign_roles({seat.node for layout in layouts for seat in layout.seats})
        snapshot = self._job_snapshot()
        for node in self._members.present(self._node):
            self._post(node.name, snapshot)

    def _job_snapshot(self) -> JobSnapshot:
        return JobSnapshot(
            coordinator=self._node,
            epoch=self._epoch,
            members=self._members.snapshot(),
            tasks=tuple(t.snapshot(t.name in self._startup.data_ready) for t in self._tasks.values()),
            incidents=self._incidents,
            started=self._started,
        )

    # ------------------------------------------------------------ the end

    def task_finished(self, task: str) -> None:
        self.journal.write("task_finished", self._epoch, task=task, iteration=self.commits.last(task))
        self.changed()
        if all(control.finished for control in self._tasks.values()):
            self._finish(0, "finished", "")
        else:
            self._or_fail(lambda: self._planning.after_finish(task, self._epoch))

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
        for task in self._tasks.values():
            task.close()
            self.commits.flush(task.name)
        self._ending.end(epoch=self._epoch, exit_code=exit_code, state=state, cause=cause, detail=detail)

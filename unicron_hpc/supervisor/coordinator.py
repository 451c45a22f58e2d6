"""The coordinator, the one agent that decides: it hears the others, looks at the clock, moves the board."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unicron_hpc.config import Settings
from unicron_hpc.detect.clock_skew import Clocks
from unicron_hpc.detect.node_checks import CLOCK_OFF
from unicron_hpc.detect.severity import LOST_CONNECTION, Blame, Finding, Method, Severity
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.board import Board
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.members import Node
from unicron_hpc.supervisor.messages import (
    Beat,
    Body,
    DataReady,
    Finish,
    Heartbeat,
    JobSnapshot,
    Join,
    Noticed,
    PrepareData,
    RankExited,
    RankSaid,
    RankStarted,
    Role,
)
from unicron_hpc.supervisor.office import Office, Standing
from unicron_hpc.supervisor.rank_messages import RankAddress
from unicron_hpc.supervisor.startup import Startup
from unicron_hpc.supervisor.watch_messages import StacksDumped

log = logging.getLogger(__name__)

#: A coordinator that was silent for a while and is there again: nothing of its node is broken.
UNLED = Finding("the coordinator was silent", Severity.SEV3, Blame.NOBODY)


class Coordinator:
    """Decides for the whole job, as long as its agent is the leader.

    Parameters
    ----------
    run_folder, node, settings, allocation
        As in the agent.
    snapshot, predecessor, last_heard
        What the coordinator before had decided, who that was, and the monotonic time of its last sign of
        life; None at the start of the job.
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
        last_heard: float | None = None,
        post: Callable[[str, Body], None],
        forget: Callable[[str], None],
        learn: Callable[[Mapping[str, str]], None],
        witness: Callable[[Sequence[str]], bool],
    ) -> None:
        self._board = Board(
            run_folder=run_folder,
            node=node,
            settings=settings,
            allocation=allocation,
            snapshot=snapshot,
            post=post,
            forget=forget,
            witness=witness,
        )
        self._run_folder = run_folder
        self._node = node
        self._settings = settings
        self._allocation = allocation
        self._snapshot = snapshot
        self._predecessor = predecessor
        self._silent_since = _unix_time(time.monotonic() if last_heard is None else last_heard)
        self._post = post
        self._learn = learn
        self._last_beat = 0.0
        self._beat = 0
        self._clocks = Clocks()
        self._unfit: list[tuple[str, Noticed]] = []  # nodes that joined and cannot work
        self._examined: set[str] = set()  # nodes whose findings have been taken in
        recovery = settings.recovery
        self._office = Office(self._board.members, recovery.node_timeout, recovery.startup_timeout)
        self._startup = Startup(
            self._board.members,
            allocation.active,
            list(self._board.tasks),
            recovery.startup_timeout,
            time.monotonic(),
        )
        self._startup.data_ready = self._board.data_ready

    def start(self, term: int) -> None:
        """Take office."""
        board, now = self._board, time.monotonic()
        board.journal.write("coordinator_elected", board.epoch, node=self._node, term=term)
        if self._snapshot is None:
            board.journal.write(
                "job_started",
                0,
                job_id=self._allocation.job_id,
                shown_id=self._allocation.shown_id or self._allocation.job_id,
                ends=self._allocation.ends,
                run_dir=str(self._run_folder),
                nodes=list(self._allocation.nodes),
                active=self._allocation.active,
                tasks=list(board.tasks),
                train_iters={task.name: task.train.train_iters for task in self._settings.task_list()},
            )
            return
        board.adopt(self._snapshot, now)
        self._office.succeed(self._predecessor, now)
        board.epoch_runs()
        board.changed()

    def close(self) -> None:
        """Leave office."""
        self._board.close()

    def stop_requested(self, reason: str, seconds: float) -> None:
        """The user or Slurm wants the job to end within so many seconds."""
        saves = [task.saves for task in self._board.tasks.values()]
        self._board.last_checkpoint.begin(saves, reason, seconds, self._board.epoch)

    # ------------------------------------------------------------ messages

    def handle(self, sender: str, body: Body) -> None:
        """Take a message of an agent."""
        node = self._board.members.get(sender)
        if node is None:
            log.warning("message of %s, which is no node of this job", sender)
            return
        if node.role is Role.LOST:
            if isinstance(body, Join | Heartbeat) and sender != self._node:  # ours leaves when it can
                self._dismiss(node, body)
            return
        node.heard = time.monotonic()
        if self._board.over:
            return
        if isinstance(body, Heartbeat):
            self._office.echoed(sender, body.beat)
            self._compare_clocks(sender, body)
        if not self._office.hold_back(sender, body, short=not self._board.may_decide):
            self._dispatch(node, body)

    def _compare_clocks(self, sender: str, heartbeat: Heartbeat) -> None:
        now = time.time()
        skew = self._clocks.heard(sender, heartbeat.beat, heartbeat.time, now)
        if skew is not None:
            detail = f"{abs(skew):.2f} s {'ahead of' if skew > 0 else 'behind'} {self._node}, at least"
            self._board.on_noticed(sender, Noticed(CLOCK_OFF, Method.NODE_HEALTH, detail, now))

    def _dispatch(self, node: Node, body: Body) -> None:
        tasks = self._board.tasks
        match body:
            case Join():
                self._on_join(node, body)
            case Heartbeat(warm, _, commits):
                node.warm = warm
                for vital in body.vitals:
                    if vital.rank.task in tasks:
                        tasks[vital.rank.task].vitals.note(vital, time.monotonic())
                for name, epoch, committed in commits:
                    if name in tasks:
                        tasks[name].on_commit(epoch, committed)
            case RankStarted() | RankExited() | RankSaid():
                task = tasks.get(body.rank.task)
                if task is None:
                    return
                if isinstance(body, RankStarted):
                    task.on_started(body)
                elif isinstance(body, RankExited):
                    task.on_exited(body)
                else:
                    task.on_said(body)
            case Noticed(rank=None):
                self._board.on_noticed(node.name, body)
            case Noticed(rank=RankAddress(task=name)) if name in tasks:
                tasks[name].on_noticed(body)
            case StacksDumped():
                self._board.on_stacks(node.name, body)
            case DataReady(name, error):
                if error:
                    self._board.fail(f"the data of task {name} could not be prepared", error)
                else:
                    self._board.data_ready.add(name)
                    self._board.changed()

    def _on_join(self, node: Node, join: Join) -> None:
        board = self._board
        first = not node.joined or node.agent_pid != join.agent_pid
        self._office.heard(node.name)
        self._learn({node.name: join.address})
        node.address, node.agent_pid, node.slots = join.address, join.agent_pid, join.slots
        node.heard = time.monotonic()
        node.warm = join.warm
        self._startup.joined(node.heard)
        board.epoch = max(board.epoch, join.epoch)
        if first:
            board.journal.write(
                "agent_joined",
                board.epoch,
                node=node.name,
                pid=join.agent_pid,
                role=node.role.value,
                address=join.address,
            )
        for rank in join.ranks:
            if rank.address.task in board.tasks:
                board.tasks[rank.address.task].adopt_rank(rank.address, rank.pid)
        for name, epoch, committed in join.commits:
            if name in board.tasks:
                board.tasks[name].on_commit(epoch, committed)
        # A predecessor that died before training began has kept what it was told of unfit nodes to itself.
        told = not first and (board.training or node.name in self._examined)
        self._examined.add(node.name)
        for noticed in () if told else join.noticed:
            if noticed.finding.severity is Severity.SEV1 and not board.training:
                # Not yet: as long as few have joined, taking one out would leave too few.
                self._unfit.append((node.name, noticed))
            else:
                board.on_noticed(node.name, noticed)
        board.changed()

    def _dismiss(self, node: Node, body: Join | Heartbeat) -> None:
        """A node that was taken out speaks again: its ranks are of an old epoch, its agent shall end."""
        address = body.address if isinstance(body, Join) else node.address
        if address and not self._board.over:
            self._learn({node.name: address})  # forgotten when it was lost
            self._post(node.name, self._board.snapshot())
            self._post(node.name, Finish(3, f"{node.name} was taken out of the job while it was silent"))

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Look at what has not happened."""
        board = self._board
        if not board.over:
            board.last_checkpoint.look(now)
        if board.over:
            return
        if now - self._last_beat >= self._settings.recovery.heartbeat_interval:
            self._last_beat = now
            self._beat += 1
            self._clocks.sent(self._beat, time.time())
            for node in board.members:
                if node.role is not Role.LOST:
                    self._post(node.name, Beat(self._beat))
        match self._office.look(now):
            case Standing.WAITING:
                return
            case Standing.DESERTED:
                board.desert("no majority came back after this agent was stopped")
                return
            case Standing.TAKING_OVER:
                self._take_over()
            case Standing.CONFIRMED:
                self._replay()
                return  # what else is due is seen at the next tick
            case Standing.IN_OFFICE:
                pass
        board.look_for_lost(now)
        if not board.may_decide:
            return
        self._replay()  # what was held back while too few were in contact
        if board.over:
            return
        if not board.training:
            self._startup.prepare(lambda task: self._post(self._node, PrepareData(task)))
            if self._startup.may_begin(now):
                unfit, self._unfit = self._unfit, []
                for name, noticed in unfit:
                    board.on_noticed(name, noticed)
            if self._startup.may_begin(now) and not board.over:
                board.begin([node.name for node in self._startup.stand_in()])
        for task in board.tasks.values():
            task.tick(now)
        board.look_for_slow(now)

    def stalled(self, seconds: float) -> None:
        """This process did not run for a while: silence proves nothing, and our office may be gone."""
        log.warning("this agent did not run for %.2f s", seconds)
        self._board.members.shift(seconds)
        for task in self._board.tasks.values():
            task.shift(seconds)
        if seconds > self._settings.recovery.node_timeout / 2:
            self._office.stalled(time.monotonic(), self._beat + 1)

    def _take_over(self) -> None:
        """Everybody has told what runs on his node (or had the time to): go on from there."""
        board = self._board
        node, detail = self._predecessor or "", "the coordinator went silent"
        evidence = Evidence(UNLED, Method.NODE_HEALTH, node, None, detail, self._silent_since)
        if self._predecessor and self._office.is_silent(self._predecessor):
            evidence = Evidence(LOST_CONNECTION, Method.NODE_HEALTH, node, None, detail, self._silent_since)
            board.lose({self._predecessor: evidence})
        board.take_over()
        if all(task.finished for task in board.tasks.values()):
            board.finish(0, "finished")  # the predecessor died before it could say so
        if board.training and not board.over:
            # The predecessor may have died in the middle of a transition: only a new epoch is certain.
            for task in board.tasks.values():
                task.on_coordinator_change(evidence)
        self._replay()

    def _replay(self) -> None:
        for sender, body in self._office.release():
            self.handle(sender, body)


def _unix_time(monotonic: float) -> float:
    """The unix time of a moment of the monotonic clock."""
    return time.time() - (time.monotonic() - monotonic)

"""The agent, one on every node: keeps its ranks, follows a coordinator, becomes one if it must."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from unicron_hpc.config import Settings, load_resolved
from unicron_hpc.detect.site_rules import use_rules_of
from unicron_hpc.errors import UnicronError
from unicron_hpc.slurm.run_folder import RULES
from unicron_hpc.supervisor import directory
from unicron_hpc.supervisor.address import own_address
from unicron_hpc.supervisor.agent_environment import node_name, rank_environment
from unicron_hpc.supervisor.agent_log import AgentLog
from unicron_hpc.supervisor.allocation import Allocation, read_allocation
from unicron_hpc.supervisor.coordinator import Coordinator
from unicron_hpc.supervisor.drill_agent import Drills
from unicron_hpc.supervisor.kernel_watch import KernelWatch
from unicron_hpc.supervisor.keys import read_keys
from unicron_hpc.supervisor.leadership import Leadership
from unicron_hpc.supervisor.local_ranks import LocalRanks
from unicron_hpc.supervisor.messages import (
    Beat,
    Body,
    DataReady,
    Drill,
    Envelope,
    Finish,
    Heartbeat,
    JobSnapshot,
    Join,
    Noticed,
    PrepareData,
    RankSaid,
    StartRank,
    StopRank,
    TellRank,
    Vote,
    VoteRequest,
)
from unicron_hpc.supervisor.node_data import prepare_task_data
from unicron_hpc.supervisor.node_health import NodeHealth
from unicron_hpc.supervisor.oom import MemoryKills, counter_file
from unicron_hpc.supervisor.probes import Probes
from unicron_hpc.supervisor.rank_messages import RankCommitted
from unicron_hpc.supervisor.recent_commits import RecentCommits
from unicron_hpc.supervisor.stop_wishes import StopWishes
from unicron_hpc.supervisor.transport import Transport
from unicron_hpc.supervisor.watch_messages import DumpStacks
from unicron_hpc.supervisor.witness import missing_are_down, this_node_is_well
from unicron_hpc.supervisor.zygote_client import Zygote

log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36

#: What only the coordinator says.
Order = JobSnapshot | Beat | StartRank | StopRank | TellRank | DumpStacks | PrepareData | Finish


class Agent:
    """One node's agent.

    Parameters
    ----------
    run_folder
        The job's run folder.
    node
        This node's name (SLURMD_NODENAME).
    settings, allocation
        What was submitted and what was granted.
    """

    def __init__(self, run_folder: Path, node: str, settings: Settings, allocation: Allocation) -> None:
        self.run_folder = run_folder
        self.node = node
        self.settings = settings
        self.allocation = allocation
        self._host = own_address(os.environ)
        self._transport = Transport(node, read_keys(run_folder), self._host)
        self._zygote = Zygote(
            run_folder / "logs" / f"zygote-{node}.log", rank_environment(os.environ, self._host), self._join
        )
        self._memory_kills = MemoryKills(counter_file())
        self._ranks = LocalRanks(
            run_folder, self._zygote, self._report, self._memory_kills, settings.recovery
        )
        self._health = NodeHealth(run_folder, settings, allocation.slots, self._report)
        self._kernel = KernelWatch(
            self._report, self._ranks.by_pid, self._memory_kills, lambda: self._health.buses
        )
        self._findings: tuple[Noticed, ...] | None = None  # of the checks, before which it does not join
        self._drills = Drills(run_folder, node, settings.recovery.drills, self._ranks)
        self._commits = RecentCommits()
        self._leadership = Leadership(
            node,
            allocation.nodes,
            settings.recovery,
            send=self._transport.send,
            look_up=self._look_up,
            cut_all=self._ranks.cut_all,
            witness=lambda absent: missing_are_down(allocation, absent),
            elected=self._won,
            probes=Probes(settings.recovery.node_timeout),
        )
        self._beat = 0
        self._coordinator: Coordinator | None = None
        self._finish: asyncio.Future[int] | None = None
        self._last_tick = time.monotonic()
        self._wishes = StopWishes(settings.slurm.signal, node, self._ask_to_stop, self._end)
        self._preparing: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Work until the run is over; returns the exit code."""
        loop = asyncio.get_running_loop()
        self._finish = loop.create_future()
        for number in self._wishes.numbers:
            loop.add_signal_handler(number, self._wishes.take, number)
        await self._transport.start()
        directory.announce(self.run_folder, self.node, self._transport.address)
        self._zygote.start()
        if self._leadership.ours:
            self._coordinate(None)
        self._background(self._check_and_join())
        receiver = asyncio.create_task(self._receive(), name="receive")
        ticker = asyncio.create_task(self._tick_forever(), name="tick")
        watcher = asyncio.create_task(self._ranks.watch.run(), name="watch")
        waited: set[asyncio.Future[Any]] = {receiver, ticker, watcher, self._finish}
        try:
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._finish in done:
                return self._finish.result()
            for ended in done:
                ended.result()  # raises what went wrong
            return 1
        finally:
            for task in (receiver, ticker, watcher, *self._preparing):
                task.cancel()
            self._health.close()
            self._kernel.close()
            self._ranks.watch.close()
            if self._coordinator:
                self._coordinator.close()
            self._zygote.close()
            await self._ranks.wait_empty(5.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._transport.close(), 3.0)

    # ------------------------------------------------------------ sending

    def _post(self, node: str, body: Body) -> None:
        """Send in the leader's term."""
        self._transport.send(node, self._leadership.term, body)

    def _report(self, body: Body) -> None:
        """Tell the coordinator."""
        if isinstance(body, RankSaid) and isinstance(body.said, RankCommitted):
            self._commits.add(body.rank.task, body.said.epoch, body.said.committed)
            if not self._commits.speaks_for(body.rank):
                return  # one rank a node and task is enough to tell of a commit
        self._post(self._leadership.leader, body)

    async def _check_and_join(self) -> None:
        """Join once it is known what state the node is in: a bad one must get no work first."""
        try:
            self._findings = await self._health.check()
        except Exception:  # checks that fail say nothing about the node
            log.exception("this node could not be checked")
            self._findings = ()
        self._join()
        self._kernel.start()

    def _join(self) -> None:
        if self._findings is None:
            return
        self._post(
            self._leadership.leader,
            Join(
                address=self._transport.address,
                agent_pid=os.getpid(),
                slots=self.allocation.slots,
                epoch=max(self._leadership.epoch, self._ranks.newest_epoch),
                warm=self._zygote.warm,
                ranks=self._ranks.states(),
                commits=self._commits.all(),
                noticed=self._findings,
            ),
        )

    # ------------------------------------------------------------ receiving

    async def _receive(self) -> None:
        while True:
            envelope = await self._transport.receive()
            try:
                self._handle(envelope)
            except UnicronError as error:
                log.error("%s", error)
            except OSError:
                # A full or broken disk must not silence the agent; what depended on it has its own time-outs.
                log.exception("cannot write")

    def _handle(self, envelope: Envelope) -> None:
        body = envelope.body
        if isinstance(body, VoteRequest):
            self._leadership.on_vote_request(envelope.term, body)
            return
        if isinstance(body, Vote):
            self._leadership.on_vote(envelope.sender, envelope.term, body)
            return
        elected = isinstance(body, JobSnapshot) and envelope.term > self._leadership.term
        if isinstance(body, JobSnapshot) and elected:
            self._follow(envelope.term, body.coordinator)
        if isinstance(body, Order):
            if envelope.term == self._leadership.term:
                self._obey(body)
                if elected:
                    self._join()
            elif envelope.term < self._leadership.term and self._leadership.snapshot is not None:
                # A coordinator that was stopped and does not know that it was succeeded.
                self._transport.send(envelope.sender, self._leadership.term, self._leadership.snapshot)
        elif isinstance(body, Drill):
            self._drills.take(body)  # from the job's owner, who has its keys; in no term
        elif self._coordinator is not None:
            self._coordinator.handle(envelope.sender, body)

    def _obey(self, order: Order) -> None:
        self._leadership.spoke()
        match order:
            case JobSnapshot():
                self._leadership.snapshot = order
                self._health.on_snapshot(order)
                self._transport.learn({member.node: member.address for member in order.members})
            case StartRank(rank):
                self._ranks.start(rank)
            case StopRank(rank):
                self._ranks.stop(rank)
            case TellRank(rank, inner):
                self._ranks.tell(rank, inner)
            case DumpStacks(task, epoch):
                self._ranks.watch.dump(task, epoch)
            case PrepareData(task):
                self._prepare(task)
            case Finish(exit_code, reason):
                log.info("finished (%d): %s", exit_code, reason)
                self._end(exit_code)
            case Beat(number):
                self._beat = number

    def _prepare(self, name: str) -> None:
        async def work() -> None:
            error = await prepare_task_data(self.run_folder, name, self._zygote)
            self._report(DataReady(name, error))

        self._background(work())

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)

    def _end(self, exit_code: int) -> None:
        if self._finish and not self._finish.done():
            self._finish.set_result(exit_code)

    def _ask_to_stop(self, reason: str, seconds: float) -> bool:
        if self._coordinator:
            self._coordinator.stop_requested(reason, seconds)
        return self._coordinator is not None

    # ------------------------------------------------------------ time

    async def _tick_forever(self) -> None:
        interval = self.settings.recovery.heartbeat_interval
        while True:
            await asyncio.sleep(interval / 2)
            now = time.monotonic()
            stalled = now - self._last_tick - interval / 2
            self._last_tick = now
            self._memory_kills.look()
            if stalled > interval:
                # We did not run ourselves (stopped, or starved): silence of others proves nothing.
                self._leadership.stalled(stalled)
                if self._coordinator:
                    self._coordinator.stalled(stalled)
            if not self._transport.knows(self._leadership.leader):
                self._look_up()
            if self._leadership.snapshot is None:
                self._join()  # until somebody answers: the leader may have been unknown or not up
            else:
                self._post(
                    self._leadership.leader,
                    Heartbeat(
                        self._zygote.warm,
                        self._beat,
                        self._commits.fresh(),
                        time.time(),
                        vitals=self._ranks.watch.vitals(),
                    ),
                )
            if self._coordinator:
                self._coordinator.tick(now)
            else:
                await self._leadership.watch()

    # ------------------------------------------------------------ coordinating

    def _look_up(self) -> None:
        """Learn of agents that only their notes in the run folder tell of."""
        self._transport.learn(directory.addresses(self.run_folder))

    def _won(self, predecessor: str) -> None:
        self._coordinate(predecessor)
        self._join()

    def _coordinate(self, predecessor: str | None) -> None:
        self._coordinator = Coordinator(
            run_folder=self.run_folder,
            node=self.node,
            settings=self.settings,
            allocation=self.allocation,
            snapshot=self._leadership.snapshot,
            predecessor=predecessor,
            last_heard=self._leadership.heard,
            post=self._post,
            forget=self._transport.forget,
            learn=self._transport.learn,
            witness=lambda absent: (
                this_node_is_well(self.allocation, self.node) and missing_are_down(self.allocation, absent)
            ),
        )
        self._coordinator.start(self._leadership.term)
        self._wishes.pass_on()

    def _follow(self, term: int, coordinator: str) -> None:
        """Somebody was elected in a higher term: whoever coordinated before does so no more."""
        if self._coordinator:
            log.warning("%s coordinates now (term %d); stepping down", coordinator, term)
            self._coordinator.close()
            self._coordinator = None
        self._leadership.follow(term, coordinator)
        self._beat = 0


def main() -> None:
    """Entry point: `python -m unicron_hpc.supervisor.agent RUN_FOLDER`."""
    run_folder = Path(sys.argv[1])
    node = node_name(os.environ)
    logs = run_folder / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, handlers=[AgentLog(logs / f"agent-{node}.log")])
    # Ranks whose zygote died are adopted, so that somebody reaps them.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        use_rules_of(run_folder / RULES)
        agent = Agent(run_folder, node, load_resolved(run_folder / "train.yaml"), read_allocation(run_folder))
        code = asyncio.run(agent.run())
    except UnicronError as error:
        log.error("%s", error)
        print(f"unicron agent on {node}: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    except Exception:
        log.exception("the agent failed")
        raise
    sys.exit(code)


if __name__ == "__main__":
    main()

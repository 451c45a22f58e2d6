"""The ranks of one node: started, listened to, told what to do, reported when they die."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import logging
import signal
import socket
import termios
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from unicron_hpc.config import RecoverySettings
from unicron_hpc.errors import UnicronError
from unicron_hpc.planner.layout import Seat
from unicron_hpc.runtime.environment import RUN_FOLDER, SEAT, TASK
from unicron_hpc.runtime.phase_page import PhasePage
from unicron_hpc.supervisor.in_time import in_time
from unicron_hpc.supervisor.messages import Body, RankExited, RankSaid, RankStarted, RankState
from unicron_hpc.supervisor.oom import MemoryKills
from unicron_hpc.supervisor.rank_log import LastLines, RankLog
from unicron_hpc.supervisor.rank_messages import (
    HEADER_BYTES,
    Cut,
    IAmHere,
    RankAddress,
    RankCommitted,
    RankFault,
    RankHeld,
    RankReady,
    RebuildOrder,
    ToRank,
    frame,
    frame_length,
    from_rank_decoder,
)
from unicron_hpc.supervisor.rank_watch import RankWatch
from unicron_hpc.supervisor.zygote_client import RankProcess, Zygote

log = logging.getLogger(__name__)

#: How long a dead rank's last messages and its log may take to be read, in seconds.
LAST_WORDS_LIMIT = 1.0
LOG_LIMIT = 0.5


#: Ended ranks that are remembered, for what the kernel says of them a moment later.
REMEMBERED = 32


#: A task's place on this node. While a node changes hands, two tasks have a process in the same seat.
Place = tuple[str, Seat]


def _place(address: RankAddress) -> Place:
    return address.task, address.seat


class _LocalRank:
    """One live process and the task that listens to it."""

    def __init__(self, address: RankAddress, process: RankProcess, log: RankLog) -> None:
        self.address = address
        self.process = process
        self.log = log
        self.epoch = 0
        self.writer: asyncio.StreamWriter | None = None


class LocalRanks:
    """All ranks of this node.

    Parameters
    ----------
    run_folder
        For logs and for the ranks themselves.
    zygote
        Forks them.
    report
        Takes what the coordinator must know.
    memory
        Knows who was killed for want of memory.
    recovery
        From when on a rank takes too long.

    Attributes
    ----------
    watch
        Watches them from outside.
    """

    def __init__(
        self,
        run_folder: Path,
        zygote: Zygote,
        report: Callable[[Body], None],
        memory: MemoryKills | None = None,
        recovery: RecoverySettings | None = None,
    ) -> None:
        self._memory = memory or MemoryKills(None)
        self.watch = RankWatch(run_folder, recovery or RecoverySettings(), report, self.tell)
        self._run_folder = run_folder
        self._zygote = zygote
        self._report = report
        self._ranks: dict[Place, _LocalRank] = {}
        self._ended: deque[tuple[int, tuple[RankAddress, int]]] = deque(maxlen=REMEMBERED)
        self._starting: dict[Place, RankAddress] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.newest_epoch = 0  # the highest that any order named: a new coordinator must begin above it

    def states(self) -> tuple[RankState, ...]:
        """Every live rank, for a coordinator that has to be told."""
        return tuple(RankState(rank.address, rank.process.pid, rank.epoch) for rank in self._ranks.values())

    def by_pid(self) -> dict[int, tuple[RankAddress, int]]:
        """Every live rank and those that ended last, with the epoch that each was in."""
        live = {rank.process.pid: (rank.address, rank.epoch) for rank in self._ranks.values()}
        return {**dict(self._ended), **live}

    def start(self, address: RankAddress) -> None:
        """Start a process in a seat; a second order for the same or an older incarnation does nothing."""
        known = self._ranks.get(_place(address))
        starting = self._starting.get(_place(address))
        newest = max(known.address.incarnation if known else 0, starting.incarnation if starting else 0)
        if address.incarnation <= newest:
            return
        if known:
            known.process.kill()
        self._starting[_place(address)] = address
        self._background(self._run(address))

    def stop(self, address: RankAddress) -> None:
        """Kill a seat's process if it is still this incarnation, or is about to be."""
        if self._starting.get(_place(address)) == address:
            del self._starting[_place(address)]
        if self.watch.defer(address, lambda: self.stop(address)):
            return
        rank = self._ranks.get(_place(address))
        if rank and rank.address == address:
            rank.process.kill()

    def tell(self, address: RankAddress, order: ToRank) -> None:
        """Pass an order on; one for a process that is gone is dropped (its death is reported)."""
        if isinstance(order, Cut):
            self.newest_epoch = max(self.newest_epoch, order.epoch)
        elif isinstance(order, RebuildOrder):
            self.newest_epoch = max(self.newest_epoch, order.rebuild.epoch)
        if self.watch.defer(address, lambda: self.tell(address, order)):
            return
        rank = self._ranks.get(_place(address))
        if rank is None or rank.address != address or rank.writer is None:
            return
        if isinstance(order, Cut):
            self.watch.cut(address, order.epoch)
        if isinstance(order, RebuildOrder):
            rank.epoch = order.rebuild.epoch
            self.watch.ordered(address, order.rebuild)
        with contextlib.suppress(ConnectionError):
            rank.writer.write(frame(order))

    def cut_all(self) -> None:
        """Stop all ranks where they are, without asking anybody (this node is in a minority)."""
        epoch = self.newest_epoch + 1
        for rank in self._ranks.values():
            self.tell(rank.address, Cut(epoch))

    def kill_all(self) -> None:
        """Kill every rank."""
        self._starting.clear()
        for rank in self._ranks.values():
            rank.process.kill()

    async def wait_empty(self, seconds: float) -> bool:
        """Wait until all ranks are gone and reaped; False when that took longer."""
        try:
            async with asyncio.timeout(seconds):
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
        except TimeoutError:
            return False
        return True

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, address: RankAddress) -> None:
        """The whole life of one rank process, seen from outside."""
        name = f"rank-{address.seat.node}-{address.seat.slot}.log"
        rank_log = RankLog(self._run_folder / "logs" / name)
        environment = {
            RUN_FOLDER: str(self._run_folder),
            TASK: address.task,
            SEAT: f"{address.seat.node}:{address.seat.slot}",
        }
        with contextlib.suppress(TimeoutError):
            await in_time(rank_log.begin, LOG_LIMIT)
        page = PhasePage()
        try:
            process = await self._zygote.spawn(rank_log.path, environment, page)
        except UnicronError as error:
            self._is_wanted(address)
            self._report(RankExited(address, 0, None, str(error), time.time()))
            return
        rank = _LocalRank(address, process, rank_log)
        if self._is_wanted(address):
            self._ranks[_place(address)] = rank
        else:
            process.kill()
        self.watch.add(address, process, page)
        reader, rank.writer = await asyncio.open_connection(sock=process.socket)
        self._report(RankStarted(address, process.pid))
        listener = asyncio.create_task(self._listen(rank, reader))
        await process.dead.wait()
        # Beside the wait for the status: on a busy machine each turn of another thread or process takes time.
        reading = asyncio.create_task(self._last_lines(rank))
        await process.gone.wait()
        killed = process.status in (None, -signal.SIGKILL)
        memory = self._memory.evidence(process.pid) if killed else ""
        last = await reading
        # What it said before it died is in the socket's buffer and comes before the news of its death.
        await _drained(listener, process.socket)
        rank.writer.close()
        self.watch.remove(address)
        if self._ranks.get(_place(address)) is rank:
            del self._ranks[_place(address)]
        self._ended.append((process.pid, (address, rank.epoch)))
        self._report(
            RankExited(
                address,
                process.pid,
                process.status,
                last.tail,
                process.died,
                core=process.core,
                words=last.words,
                memory=memory,
            )
        )

    async def _last_lines(self, rank: _LocalRank) -> LastLines:
        try:
            return await in_time(rank.log.last_lines, LOG_LIMIT)
        except TimeoutError:
            return LastLines(f"({rank.log.path} could not be read within {LOG_LIMIT} s)", "")

    async def _mark(self, rank: _LocalRank) -> None:
        with contextlib.suppress(TimeoutError):
            await in_time(rank.log.mark, LOG_LIMIT)

    def _is_wanted(self, address: RankAddress) -> bool:
        """Whether a process that was just forked was neither stopped nor superseded in the meantime."""
        if self._starting.get(_place(address)) != address:
            return False
        del self._starting[_place(address)]
        return True

    async def _listen(self, rank: _LocalRank, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                header = await reader.readexactly(HEADER_BYTES)
                said = from_rank_decoder.decode(await reader.readexactly(frame_length(header)))
                if isinstance(said, RankCommitted):
                    rank.epoch = said.epoch
                elif isinstance(said, IAmHere):
                    self.watch.answered(rank.address, said.number)
                    continue
                elif isinstance(said, RankReady | RankHeld | RankFault):
                    self._background(self._mark(rank))
                if isinstance(said, RankReady):
                    self.watch.ready(rank.address, said.report)
                self._report(RankSaid(rank.address, said, time.time()))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            # Whatever wrote this is no rank of ours any more; its end is reported like any other.
            log.error("%s talks nonsense and is killed: %s", rank.address, error)
            rank.process.kill()


async def _drained(listener: asyncio.Task[None], sock: socket.socket) -> None:
    """Wait until all that a dead rank had sent has been heard.

    That is not always the end of the stream: a child that it left behind (a data loader's worker) keeps its
    end of the socket open. But what the rank itself wrote is there already.
    """
    deadline = time.monotonic() + LAST_WORDS_LIMIT
    turns = 0
    while not listener.done() and turns < 3 and time.monotonic() < deadline:
        # Three turns of the loop bring what was read to the listener: the transport's, the reader's, its own.
        turns = 0 if _unread(sock) else turns + 1
        await asyncio.sleep(0)
    listener.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listener


def _unread(sock: socket.socket) -> int:
    """Bytes that the kernel still holds."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(sock, termios.FIONREAD, count)
    except (OSError, ValueError):
        return 0  # closed: the end of the stream was seen
    return count[0]

"""A rank's two threads: one trains, one listens to the agent and can cut the other loose at any time."""

from __future__ import annotations

import faulthandler
import functools
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

import torch

from unicron_hpc.config import load_resolved
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.detect.severity import Severity
from unicron_hpc.runtime.channel import AgentGone, Channel
from unicron_hpc.runtime.engine import Engine
from unicron_hpc.runtime.environment import PHASE_PAGE, RUN_FOLDER, TASK
from unicron_hpc.runtime.fault_report import fault_report, named
from unicron_hpc.runtime.orders import Rebuild
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.saving import Saver
from unicron_hpc.runtime.store import ControlStore
from unicron_hpc.runtime.task_data import open_task_data
from unicron_hpc.runtime.termination import end_after_grace
from unicron_hpc.supervisor.rank_messages import (
    AreYouThere,
    Cut,
    FinishCheckpoint,
    IAmHere,
    Inject,
    RankCommitted,
    RankFinished,
    RankHeld,
    RankHello,
    RankReady,
    RebuildOrder,
    SaveCheckpoint,
    Stop,
    StoreReply,
    StoreRequest,
)

log = logging.getLogger(__name__)

#: Exit code of a rank whose agent has gone.
EXIT_AGENT_GONE = 75


class EpochOver(Exception):
    """The supervisor has ended the epoch in which this rank computes."""


class Rank:
    """One rank process, from its first order to its last.

    Parameters
    ----------
    channel
        The socket to the agent.
    engine
        What computes.
    saver
        What writes checkpoints.
    last_iteration
        The iteration after which the task is finished.
    marks
        Where the rank says what it is doing.
    """

    def __init__(
        self, channel: Channel, engine: Engine, saver: Saver, last_iteration: int, marks: PhaseMarks
    ) -> None:
        self._channel = channel
        self._engine = engine
        self._saver = saver
        self._last_iteration = last_iteration
        self._marks = marks
        self._changed = threading.Condition()
        self._order: Rebuild | None = None
        self._cut_epoch = 0
        self._asked = False  # what it holds; more than once for an epoch if an answer was lost
        self._replies: dict[int, StoreReply] = {}
        self._next_request = 0

    # ------------------------------------------------------------ listening thread

    def listen(self) -> None:
        """Take orders until the agent goes away, which ends the process."""
        try:
            while True:
                self._take(self._channel.receive())
        except AgentGone:
            log.error("the agent has gone; this rank ends")
            os._exit(EXIT_AGENT_GONE)
        except BaseException:
            traceback.print_exc()
            os._exit(70)

    def _take(self, order: object) -> None:
        match order:
            case RebuildOrder(rebuild):
                with self._changed:
                    if rebuild.epoch >= self._cut_epoch:
                        self._order = rebuild
                        self._changed.notify_all()
            case Cut(epoch):
                with self._changed:
                    self._cut_epoch = max(self._cut_epoch, epoch)
                    self._asked = True
                    self._changed.notify_all()
                self._engine.cut(epoch)
            case StoreReply():
                with self._changed:
                    self._replies[order.request] = order
                    self._changed.notify_all()
            case FinishCheckpoint(epoch, iteration, directory, files):
                self._saver.finish(epoch, iteration, Path(directory), files)
            case SaveCheckpoint():
                self._engine.ask_to_save()
            case Inject():
                self._engine.injections.arm(order)
            case AreYouThere(number):
                self._channel.send(IAmHere(number))
            case Stop(reason):
                log.info("stopping: %s", reason)
                os._exit(0)

    # ------------------------------------------------------------ training thread

    def work(self) -> None:
        """Obey orders forever: take a place, train, report, wait."""
        while True:
            order = self._next_order()
            # Kept until the next order: the groups hold only torch's half of it. And bound to its epoch, so
            # that nothing of an old group ever writes into the store of a new epoch.
            store = ControlStore(functools.partial(self._ask, order.epoch))
            try:
                report = self._engine.rebuild(order, store)
                self._channel.send(RankReady(order.epoch, report))
                if not order.only_sends:
                    self._train(order)
            except AgentGone:
                raise
            except Exception as error:
                self._report(order.epoch, error)

    def _train(self, order: Rebuild) -> None:
        def over() -> bool:
            return self._cut_epoch > order.epoch

        self._saver.begin_epoch(order)
        if self._engine.iteration >= self._last_iteration:
            # The epoch before ended between the last commit and its checkpoint; that one is given up.
            self._saver.after_commit(self._engine.iteration, over)
        while self._engine.iteration < self._last_iteration:
            if over():
                raise EpochOver
            committed = self._engine.run_iteration()
            self._channel.send(RankCommitted(order.epoch, committed))
            self._saver.after_commit(committed.iteration, over)
        self._saver.wait(over)
        if over():
            raise EpochOver
        self._channel.send(RankFinished(order.epoch, self._engine.iteration))

    def _report(self, epoch: int, error: Exception) -> None:
        """Tell of an exception, unless it may be only what our own cut brought about."""
        # Broken hardware is no consequence of a cut: a victim was only faster with its complaint.
        if self._cut_epoch > epoch and explain_exception(named(error)).severity is not Severity.SEV1:
            log.info("epoch %d ended: %s", epoch, type(error).__name__)
            return
        fault = fault_report(epoch, error, self._marks)
        log.error("fault in epoch %d, %s\n%s", epoch, fault.place, fault.traceback)
        self._channel.send(fault)

    def _next_order(self) -> Rebuild:
        self._marks.take(WorkPhase.IDLE)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._order is not None or self._asked)
                cut, asked, self._asked = self._cut_epoch, self._asked, False
                if self._order is not None and self._order.epoch < cut:
                    self._order = None
                if not asked:
                    order, self._order = self._order, None
                    if order is not None:
                        return order
                    continue
            self._channel.send(RankHeld(cut, self._engine.holdings()))

    def _ask(self, epoch: int, operation: str, keys: tuple[str, ...], value: bytes) -> bytes:
        with self._changed:
            self._next_request += 1
            request = self._next_request
        self._channel.send(StoreRequest(epoch, request, operation, keys, value))
        with self._changed:
            self._changed.wait_for(lambda: request in self._replies or self._cut_epoch > epoch)
            reply = self._replies.pop(request, None)
        if reply is None:
            raise EpochOver
        if reply.error:
            raise EpochOver(reply.error)
        return reply.value


def _open_page() -> PhaseMarks:
    """Be ready to be watched: SIGUSR2 writes all stacks behind the page, which says where this rank is."""
    page = os.environ.get(PHASE_PAGE)
    marks = PhaseMarks(int(page) if page else None)
    faulthandler.register(signal.SIGUSR2, file=int(page) if page else sys.stderr)
    marks.take(WorkPhase.IDLE)  # whoever reads this may send the signal
    return marks


def run_rank(sock: socket.socket) -> int:
    """What a freshly forked rank does.

    Parameters
    ----------
    sock
        Its end of the socket to the agent.

    Returns
    -------
    int
        Exit code.
    """
    faulthandler.enable()
    end_after_grace()
    marks = _open_page()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    channel = Channel(sock)
    try:
        channel.send(RankHello(os.getpid()))
        run_folder = Path(os.environ[RUN_FOLDER])
        settings = load_resolved(run_folder / "train.yaml")
        task = next(task for task in settings.task_list() if task.name == os.environ[TASK])
        saver = Saver(task, channel, marks)
        engine = Engine(
            task,
            open_task_data(task, run_folder),
            device=task.train.device,
            load_units=saver.load,
            marks=marks,
        )
        saver.attach(engine)
        rank = Rank(channel, engine, saver, task.train.train_iters, marks)
        threading.Thread(target=rank.listen, name="agent", daemon=True).start()
        rank.work()
    except AgentGone:
        return EXIT_AGENT_GONE
    except Exception as error:
        fault = fault_report(0, error, marks)
        print(fault.traceback, file=sys.stderr, flush=True)
        try:
            channel.send(fault)
        except AgentGone:
            return EXIT_AGENT_GONE
        return 1
    return 0

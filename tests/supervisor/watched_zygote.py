"""A zygote whose ranks train for show: `python -m tests.supervisor.watched_zygote FD`.

A rank goes through short iterations and marks them in its page. The reason of an order to stop says in what
it gets stuck at the next one, see `_iterate`. It answers questions, and has its stacks written on a signal,
like a real one.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

import msgspec

from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.runtime.environment import PHASE_PAGE
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.zygote import serve

#: Seconds of an iteration.
PACE = 0.02
EPOCH = 1


class Rank:
    """What a forked rank does; it trains in a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._word = ""
        page = int(os.environ[PHASE_PAGE])
        self._marks = PhaseMarks(page)
        faulthandler.register(signal.SIGUSR2, file=page)
        self._marks.take(WorkPhase.IDLE, epoch=EPOCH)

    def run(self) -> int:
        self._say("RankHello", pid=os.getpid())
        threading.Thread(target=self._train, daemon=True).start()
        stream = self._sock.makefile("rb")
        while header := stream.read(4):
            order = msgspec.msgpack.decode(stream.read(struct.unpack("!I", header)[0]))
            if order["type"] == "AreYouThere":
                self._say("IAmHere", number=order["number"])
            elif order["type"] == "Stop":
                self._word = order["reason"]
        return 0

    def _train(self) -> None:
        iteration = 0
        while True:
            iteration += 1
            self._marks.begin_iteration(iteration)
            self._marks.micro_batch(0, WorkPhase.FORWARD)
            self._iterate()
            self._marks.enter(WorkPhase.EXCHANGE)
            time.sleep(PACE / 2)
            self._marks.end_iteration()

    def _iterate(self) -> None:
        forever = threading.Event()
        match self._word:
            case "":
                time.sleep(PACE / 2)
            case "sleep":
                threading.Event().wait()
            case "loop":
                while True:
                    pass
            case "wait for a peer":
                Handle().wait(forever)
            case "exchange":
                self._marks.enter(WorkPhase.EXCHANGE)
                forever.wait()
            case "build":
                self._marks.take(WorkPhase.CHUNK, epoch=EPOCH + 1)
                while True:
                    pass
            case "bring":
                self._marks.take(WorkPhase.STATE, epoch=EPOCH + 1)
                forever.wait()
            case "move":
                self._marks.take(WorkPhase.MOVE, epoch=EPOCH + 1)
                forever.wait()
            case "load":
                self._marks.take(WorkPhase.LOAD, epoch=EPOCH + 1)
                forever.wait()
            case "hold the lock":
                self._marks.enter(WorkPhase.ALL_REDUCE)
                while True:
                    ctypes.PyDLL(None).pause()

    def _say(self, kind: str, **fields: Any) -> None:
        body = msgspec.msgpack.encode({"type": kind, **fields})
        self._sock.sendall(struct.pack("!I", len(body)) + body)


class Handle:
    """Of a collective that never ends; its time is spent in a call on a line that says so."""

    def wait(self, never: threading.Event) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # handle.wait(): in C, as torch's own


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), lambda sock: Rank(sock).run(), 0.0)

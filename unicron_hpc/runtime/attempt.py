"""Work that can be given up: a call that never returns must not take the rank with it.

Cutting the sockets ends almost every wait in gloo, but not all: a message that is partly sent or partly
received when its connection breaks is forgotten by gloo (`tcp/pair.cc`: `signalException` skips unbound
buffers in `tx_` and `rx_`), and whoever waits for it waits for the full timeout. So the engine's work runs in
a worker thread. If that is still inside a communication call a moment after the cut, it is left behind there
with everything it may still write to, and a new worker takes over.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch

from unicron_hpc.runtime.faults import GroupsCut, WorkLeftBehind

T = TypeVar("T")

#: How long a communication call may go on after the cut before it counts as forgotten.
GRACE_SECONDS = 0.25
#: Files whose functions wait for peers; the innermost frame of a stuck worker is in one of them.
_WAITING_FILES = (
    "distributed_c10d.py",
    "p2p_communication.py",
    "runtime/gradients.py",
    "runtime/migration.py",
    "runtime/self_test.py",
)


class Attempt:
    """One call's right to change the rank's state; ends when the call is given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = False

    @contextlib.contextmanager
    def counts(self) -> Iterator[None]:
        """Encloses a change of state: it happens whole before the call is given up, or not at all."""
        with self._lock:
            if self._given_up:
                raise GroupsCut("this work was given up")
            yield

    def give_up(self) -> None:
        """From now on the call changes nothing."""
        with self._lock:
            self._given_up = True


class _Call(Generic[T]):
    def __init__(self, work: Callable[[Attempt], T]) -> None:
        self.work = work
        self.attempt = Attempt()
        self.news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.value: T | None = None
        self.error: BaseException | None = None


class Worker:
    """Runs calls one after the other in a thread; `call` is for the main thread, `hurry` for any."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._current: _Call[Any] | None = None

    def call(self, work: Callable[[Attempt], T], is_cut: Callable[[], bool]) -> T:
        """Run `work` and return its result.

        Parameters
        ----------
        work
            What to run; changes state only under `Attempt.counts`.
        is_cut
            Whether the groups were cut already; `hurry` may have come just before this call.

        Raises
        ------
        WorkLeftBehind
            When it was given up after `hurry`.
        """
        thread = self._thread or self._start()
        call = _Call(work)
        self._current = call
        if is_cut():
            call.news.put("cut")
        self._calls.put(call)
        while call.news.get() != "done":
            if not self._finishes(call, thread):
                call.attempt.give_up()
                self._calls.put(None)  # should it ever come back, it ends
                self._calls, self._thread, self._current = queue.SimpleQueue(), None, None
                raise WorkLeftBehind("a communication call did not end with the cut and was left behind")
        self._current = None
        if call.error is not None:
            raise call.error
        return call.value  # type: ignore[return-value]

    def hurry(self) -> None:
        """The groups were cut: the call under way must come back, or be given up."""
        call = self._current
        if call is not None:
            call.news.put("cut")

    @staticmethod
    def _finishes(call: _Call[Any], thread: threading.Thread) -> bool:
        """Whether the call ends; False once its thread has not moved inside a communication call."""
        before: tuple[int, int] | None = None
        while True:
            try:
                while call.news.get(timeout=GRACE_SECONDS) != "done":
                    continue
            except queue.Empty:
                frame = sys._current_frames().get(thread.ident or 0)
                if frame is None or not frame.f_code.co_filename.endswith(_WAITING_FILES):
                    before = None
                    continue
                here = (id(frame), frame.f_lasti)
                if here == before:
                    return False
                before = here
            else:
                call.news.put("done")
                return True

    def _start(self) -> threading.Thread:
        # OpenMP's thread count belongs to each thread; without this the worker would use every core.
        threads = torch.get_num_threads()
        calls = self._calls
        thread = threading.Thread(target=_serve, args=(calls, threads), name="engine", daemon=True)
        thread.start()
        self._thread = thread
        return thread


def _serve(calls: queue.SimpleQueue[_Call[Any] | None], threads: int) -> None:
    torch.set_num_threads(threads)
    while (call := calls.get()) is not None:
        try:
            call.value = call.work(call.attempt)
        except BaseException as error:
            call.error = error
        call.news.put("done")
        del call

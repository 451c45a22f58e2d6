"""Failing on purpose, inside a rank: what a drill orders happens in the middle of an iteration.

One order at a time, used once. Without one, each place costs a look at an attribute.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import itertools
import logging
import mmap
import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from unicron_hpc.runtime.environment import RUN_FOLDER, SEAT
from unicron_hpc.supervisor import drill_notes
from unicron_hpc.supervisor.rank_messages import Inject

log = logging.getLogger(__name__)

#: What is raised where the order names no exception.
FORWARD_ERROR = "RuntimeError: drill: this forward pass was made to fail"
DATA_ERROR = "RuntimeError: drill: DataLoader worker (pid(s) 0) exited unexpectedly"
#: Memory is taken in pieces of this many bytes, so that the limit is met and not jumped over.
_PIECE = 16 * 2**20
#: Address space that a rank may still take where no cgroup sets the limit, in bytes.
_ROOM = 256 * 2**20


class Injections:
    """The order that waits in this rank, and the places at which it can come true.

    `arm` is for the thread that listens to the agent, the rest for the one that computes.
    """

    def __init__(self) -> None:
        self._order: Inject | None = None

    def arm(self, order: Inject) -> None:
        """Let this happen at the order's iteration, in place of what was armed before."""
        self._order = order

    def data(self, iteration: int) -> None:
        """A micro-batch is about to be read."""
        if self._order is not None and self._order.name == "exception-data":
            self._come_true(iteration)

    def forward(self, iteration: int, output: torch.Tensor) -> torch.Tensor:
        """A micro-batch has gone forward through this rank's layers; returns what counts as the result."""
        if self._order is None or self._order.name == "exception-data":
            return output
        if self._order.name != "nan":
            self._come_true(iteration)
        elif self._take(iteration) is not None:
            return output * float("nan")
        return output

    def _come_true(self, iteration: int) -> None:
        order = self._take(iteration)
        if order is not None:
            _ACTIONS[order.name](order)

    def _take(self, iteration: int) -> Inject | None:
        order = self._order
        if order is None or iteration < order.iteration:
            return None
        self._order = None
        log.warning("drill %s (%s) in iteration %d", order.name, order.order, iteration)
        # The moment of the fault. What follows it takes microseconds.
        drill_notes.write(
            Path(os.environ[RUN_FOLDER]),
            order.order,
            order.name,
            os.environ[SEAT].rpartition(":")[0],
            "injected",
            f"in iteration {iteration}",
        )
        return order


def exception_of(text: str) -> Exception:
    """The exception that `Class: text` describes.

    A class that Python does not know becomes a subclass of RuntimeError of that name: only name and text
    matter to whoever judges it.
    """
    name, colon, words = text.partition(":")
    known = getattr(builtins, name.strip(), None) or getattr(torch, name.strip(), None)
    if not colon or not name.strip().isidentifier():
        return RuntimeError(text)
    if isinstance(known, type) and issubclass(known, Exception):
        with contextlib.suppress(TypeError):  # some want more than words
            return known(words.strip())
    made: Exception = type(name.strip(), (RuntimeError,), {})(words.strip())
    return made


def _segfault(order: Inject) -> None:
    ctypes.string_at(0)


def _abort(order: Inject) -> None:
    os.abort()


def _raise(default: str) -> Callable[[Inject], None]:
    def action(order: Inject) -> None:
        raise exception_of(order.text or default)

    return action


def _hold_gil(order: Inject) -> None:
    """Sum zeros in one call, which the interpreter cannot interrupt; it burns its core all the while."""
    if not order.seconds:
        sum(itertools.repeat(0))
    trial = 2_000_000
    begun = time.perf_counter()
    sum(itertools.repeat(0, trial))
    sum(itertools.repeat(0, int(trial * order.seconds / (time.perf_counter() - begun))))


def _take_memory(order: Inject) -> None:
    """Take memory until the kernel kills this process or refuses.

    `amount` is the most that is taken, in bytes, where a cgroup is said to set the limit. Without one, an
    own limit of the address space does: nobody else's memory is in danger.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    if not order.amount:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM, before[1]))
    most = order.amount or 4 * _ROOM
    taken = []
    try:
        for _ in range(0, most, _PIECE):
            piece = mmap.mmap(-1, _PIECE)
            taken.append(piece)
            for offset in range(0, _PIECE, mmap.PAGESIZE):
                piece[offset] = 1
    except OSError as error:
        raise MemoryError(f"drill: no memory for another {_PIECE} bytes") from error
    finally:
        taken.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)
    raise RuntimeError(f"drill: {most} bytes were taken and nobody minded: there is no limit")


_ACTIONS: Mapping[str, Callable[[Inject], None]] = {
    "segfault": _segfault,
    "abort": _abort,
    "exception-forward": _raise(FORWARD_ERROR),
    "exception-data": _raise(DATA_ERROR),
    "gil": _hold_gil,
    "oom": _take_memory,
}

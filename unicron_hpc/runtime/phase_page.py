"""The phase page: shared memory in which a rank says what it is doing, and its agent reads that.

The agent needs nothing of the rank for it: it also reads the page of a process that is stopped, holds the
interpreter's lock for ever or is dead. Two records, each in two slots that are written in turn and end in
their CRC: a writer that is stopped or killed in the middle of one leaves the other whole, and a reader takes
the newest whole one, whatever the memory model of the machine.

Behind the page, the rank's `faulthandler` writes its stacks when it gets SIGUSR2: into memory, so that a full
or broken disk is no obstacle. Both sides use the same open file, so the agent says where the next dump goes.

Imports neither torch nor anything else that is slow.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import weakref
import zlib
from dataclasses import dataclass
from typing import Any

from unicron_hpc.detect.phases import WorkPhase

#: Size of the page.
PAGE_BYTES = mmap.PAGESIZE
#: Most of a dump that is read.
DUMP_BYTES = 64 * 1024

_PHASES = len(WorkPhase)
#: Count, epoch, iteration, micro-batch, phase, ids of the thread, monotonic ns.
_MARK = struct.Struct("=8q")
#: Count, epoch, iteration, seconds of the whole iteration and of each phase.
_PACE = struct.Struct(f"=3q{1 + _PHASES}d")
_CRC = struct.Struct("=I")
_SLOT = 512
_MARKS, _PACES = 0, 2 * _SLOT


@dataclass(frozen=True, slots=True)
class Mark:
    """What a rank does.

    Attributes
    ----------
    count
        Marks made so far: another one means that the rank has moved.
    epoch, iteration, micro_batch
        Where it is; the iteration is the one under way, or the last one between two.
    phase
        What it is busy with.
    thread, ident
        The thread that is busy: the system's id and that of Python (and of its stack dumps).
    since
        Monotonic seconds (of this machine) when it entered the phase.
    """

    count: int
    epoch: int
    iteration: int
    micro_batch: int
    phase: WorkPhase
    thread: int
    ident: int
    since: float


@dataclass(frozen=True, slots=True)
class Doing:
    """Where a rank is, as it knows itself; fields as in `Mark`."""

    iteration: int
    micro_batch: int
    phase: WorkPhase


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the last finished iteration took.

    Attributes
    ----------
    count
        Iterations finished by this process, over all epochs.
    seconds
        From its beginning to its update; `phases` says what of it was spent in which phase.
    """

    count: int
    epoch: int
    iteration: int
    seconds: float
    phases: tuple[float, ...]


class PhaseMarks:
    """A rank's side of its page.

    Marks count only from the thread that last took the page: a worker that was left behind in a broken
    epoch cannot speak for the rank any more.

    Parameters
    ----------
    descriptor
        Of the shared memory. None for memory of this process alone: nobody watches.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            self._page = mmap.mmap(-1, PAGE_BYTES)
        else:
            self._page = mmap.mmap(descriptor, PAGE_BYTES)
        self._count = 0
        self._done = 0
        self._epoch = 0
        self._iteration = 0
        self._micro_batch = 0
        self._phase = WorkPhase.IDLE
        self._since = time.monotonic_ns()
        self._begun = self._since
        self._spent = [0] * _PHASES
        self._owner = 0
        self._thread = 0

    def take(self, phase: WorkPhase, *, epoch: int | None = None) -> None:
        """From now on the calling thread speaks for the rank; it enters `phase` (of a new `epoch`)."""
        self._owner, self._thread = threading.get_ident(), threading.get_native_id()
        if epoch is not None:
            self._epoch = epoch
        self.enter(phase)

    def enter(self, phase: WorkPhase) -> None:
        """The rank goes on to something else. Costs two microseconds."""
        if threading.get_ident() != self._owner:
            return
        now = time.monotonic_ns()
        self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now
        self._count += 1
        record = _MARK.pack(
            self._count,
            self._epoch,
            self._iteration,
            self._micro_batch,
            phase,
            self._thread,
            self._owner,
            now,
        )
        self._write(_MARKS, self._count, record)

    def micro_batch(self, index: int, phase: WorkPhase) -> None:
        """The next forward pass begins, with this global micro-batch."""
        self._micro_batch = index
        self.enter(phase)

    @property
    def doing(self) -> Doing:
        """The last mark."""
        return Doing(self._iteration, self._micro_batch, self._phase)

    def begin_iteration(self, iteration: int) -> None:
        """The calling thread computes this iteration now."""
        self._iteration = iteration
        self.take(WorkPhase.OPTIMIZER)  # zeroing the gradients is its first part
        self._spent = [0] * _PHASES
        self._begun = self._since

    def end_iteration(self) -> None:
        """The update is applied."""
        if threading.get_ident() != self._owner:
            return
        self.enter(WorkPhase.REPORT)
        self._done += 1
        seconds = (self._since - self._begun) / 1e9
        spent = (part / 1e9 for part in self._spent)
        self._write(_PACES, self._done, _PACE.pack(self._done, self._epoch, self._iteration, seconds, *spent))

    def _write(self, offset: int, count: int, record: bytes) -> None:
        start = offset + (count & 1) * _SLOT
        whole = record + _CRC.pack(zlib.crc32(record))
        self._page[start : start + len(whole)] = whole


class PhasePage:
    """The agent's side: makes the memory and reads it, as long as anybody has the page.

    Attributes
    ----------
    descriptor
        To be given to the rank.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("unicron-phases", os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        self.expect_dump()
        self._page = mmap.mmap(self.descriptor, PAGE_BYTES, prot=mmap.PROT_READ)

    def expect_dump(self) -> None:
        """Forget the last dump."""
        os.ftruncate(self.descriptor, PAGE_BYTES)
        os.lseek(self.descriptor, PAGE_BYTES, os.SEEK_SET)

    def dump_bytes(self) -> int:
        """Size of what was dumped since `expect_dump`."""
        return os.fstat(self.descriptor).st_size - PAGE_BYTES

    def dump(self) -> str:
        """What was dumped since `expect_dump`, at most `DUMP_BYTES` of it."""
        return os.pread(self.descriptor, DUMP_BYTES, PAGE_BYTES).decode(errors="replace")

    def mark(self) -> Mark | None:
        """What the rank does; None before its first mark."""
        found = self._newest(_MARKS, _MARK)
        if found is None:
            return None
        count, epoch, iteration, micro_batch, phase, thread, ident, since = found
        return Mark(count, epoch, iteration, micro_batch, WorkPhase(phase), thread, ident, since / 1e9)

    def pace(self) -> Pace | None:
        """Its last finished iteration; None before the first."""
        found = self._newest(_PACES, _PACE)
        if found is None:
            return None
        count, epoch, iteration, seconds, *phases = found
        return Pace(count, epoch, iteration, seconds, tuple(phases))

    def _newest(self, offset: int, layout: struct.Struct) -> tuple[Any, ...] | None:
        # A writer that laps the reader spoils one of the slots at a time; more than that is bad luck twice.
        for _ in range(3):
            whole = []
            for slot in range(2):
                start = offset + slot * _SLOT
                data = self._page[start : start + layout.size + _CRC.size]
                record = data[: layout.size]
                fields = layout.unpack(record)
                if fields[0] > 0 and _CRC.unpack(data[layout.size :])[0] == zlib.crc32(record):
                    whole.append(fields)
            if whole:
                return max(whole, key=lambda fields: fields[0])
        return None

"""Follows the kernel's log, where the agent may read it: sick hardware, and processes that it ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from unicron_hpc.detect.exits import HOST_MEMORY
from unicron_hpc.detect.kernel_log import KernelEvent, KernelLog
from unicron_hpc.detect.severity import Blame, Finding, Method, Severity
from unicron_hpc.supervisor.messages import Body, Noticed
from unicron_hpc.supervisor.oom import MemoryKills
from unicron_hpc.supervisor.rank_messages import RankAddress

log = logging.getLogger(__name__)

DEVICE = Path("/dev/kmsg")
#: Longest record of the kernel (Documentation/ABI/testing/dev-kmsg).
RECORD = 8192
#: Records that are read before other work gets its turn.
AT_ONCE = 64
#: At most so many findings are told in so many seconds: a dying device prints thousands of lines.
MOST_TOLD, WINDOW = 20, 60.0
#: How many parents of a process are looked at to find the rank that it works for.
GENERATIONS = 4


class KernelWatch:
    """Reads new records of the kernel's log and tells what they mean for this node.

    Parameters
    ----------
    report
        Takes what the coordinator must know.
    ranks
        The ranks of this node by pid, also those that have just ended, with their epochs.
    memory
        Is told which processes the kernel has killed for want of memory.
    buses
        PCI addresses of this job's GPUs; None where they are not known.
    """

    def __init__(
        self,
        report: Callable[[Body], None],
        ranks: Callable[[], Mapping[int, tuple[RankAddress, int]]],
        memory: MemoryKills,
        buses: Callable[[], tuple[str, ...] | None],
        kernel_log: KernelLog | None = None,
    ) -> None:
        self._report = report
        self._ranks = ranks
        self._memory = memory
        self._buses = buses
        self._log = kernel_log or KernelLog()
        self._descriptor: int | None = None
        self._told: deque[float] = deque()
        self._untold = 0

    def start(self, device: Path = DEVICE) -> bool:
        """Begin with what is logged from now on; False where the log cannot be read, which is no error."""
        try:
            self._descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.info("the kernel's log is not watched: %s", error)
            return False
        with contextlib.suppress(OSError):  # a pipe has no end to go to
            os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            asyncio.get_running_loop().add_reader(self._descriptor, self._on_readable)
        except OSError as error:  # no file that can be waited for
            log.info("the kernel's log is not watched: %s", error)
            self.close()
            return False
        return True

    def close(self) -> None:
        """Read no more."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    # ------------------------------------------------------------ records

    def _on_readable(self) -> None:
        for _ in range(AT_ONCE):
            if self._descriptor is None:
                return
            try:
                record = os.read(self._descriptor, RECORD)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read: the next one is there
                log.warning("the kernel's log is not watched any more: %s", error)
                self.close()
                return
            if not record:
                self.close()
                return
            for line in record.decode(errors="replace").splitlines():
                if not line.startswith(" "):  # a record's dictionary
                    self._take(line)

    def _take(self, line: str) -> None:
        for event in self._log.feed(line):
            self._judge(event)

    def _judge(self, event: KernelEvent) -> None:
        """Whom a record is about: a rank of ours, this node, or somebody else's process."""
        finding, ours = event.finding, self._owner(event.pid)
        if ours is not None:
            if finding.error == HOST_MEMORY.error and event.pid is not None:
                self._memory.kernel_said(event.pid, event.text)
            self._tell(_noticed(event, finding, *ours))
            return
        if finding.blame is not Blame.NODE and event.pid is not None:
            return  # somebody else's process on a shared node
        if finding.blame is not Blame.NODE or self._is_anothers(event):
            # Whose it is nobody can tell; what it does to a rank shows there.
            finding = msgspec.structs.replace(finding, severity=Severity.INFO)
        self._tell(_noticed(event, finding))

    def _owner(self, pid: int | None) -> tuple[RankAddress, int] | None:
        """The rank that a process is, or works for."""
        ranks = self._ranks()
        for _ in range(GENERATIONS):
            if pid is None or pid in ranks:
                break
            pid = _parent(pid)
        return None if pid is None else ranks.get(pid)

    def _is_anothers(self, event: KernelEvent) -> bool:
        """Whether a record is about a GPU that is not this job's, as far as these are known."""
        buses = self._buses()
        if event.pci is None or buses is None or not (event.xid or "NVRM" in event.text):
            return False
        return _slot(event.pci) not in {_slot(bus) for bus in buses}

    def _tell(self, noticed: Noticed) -> None:
        now = time.monotonic()
        while self._told and self._told[0] <= now - WINDOW:
            self._told.popleft()
        if len(self._told) >= MOST_TOLD and noticed.finding.severity is not Severity.SEV1:
            self._untold += 1
            log.info("not told, one of too many (%d): %s", self._untold, noticed.detail)
            return
        self._told.append(now)
        self._report(noticed)


def _noticed(
    event: KernelEvent, finding: Finding, rank: RankAddress | None = None, epoch: int = 0
) -> Noticed:
    return Noticed(finding, Method.NODE_HEALTH, f"kernel log: {event.text}", time.time(), rank, epoch)


def _slot(pci: str) -> str:
    """A PCI address without function, its domain without leading zeros: `b3:00` of domain 0 is `0:b3:00`."""
    domain, _, rest = pci.lower().partition(":")
    return f"{int(domain, 16):x}:{rest.partition('.')[0]}"


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None

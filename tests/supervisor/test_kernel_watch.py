"""Following the kernel's log: a pipe in place of /dev/kmsg, and /dev/kmsg itself where that is allowed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.supervisor.events import within
from unicron_hpc.detect.kernel_log import KernelLog
from unicron_hpc.detect.severity import Severity
from unicron_hpc.detect.site_rules import parse_rules
from unicron_hpc.detect.table import Table, default_table
from unicron_hpc.planner.layout import Seat
from unicron_hpc.supervisor import kernel_watch
from unicron_hpc.supervisor.kernel_watch import DEVICE, MOST_TOLD, KernelWatch
from unicron_hpc.supervisor.messages import Body, Noticed
from unicron_hpc.supervisor.oom import MemoryKills
from unicron_hpc.supervisor.rank_messages import RankAddress

RANK = RankAddress("train", Seat("n1", 0), 3)
OURS, OTHERS = 2**22 + 1, 2**22 + 2  # above every pid of this machine
OFF_THE_BUS = "NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:b3:00): 31, pid={}, name=python, MMU Fault: ENGINE GRAPHICS faulted"
KILLED = "Memory cgroup out of memory: Killed process {} (python) total-vm:9kB, anon-rss:8kB"


class Log:
    """A kernel log that the test writes."""

    def __init__(self, path: Path, buses: tuple[str, ...] | None = None, table: Table | None = None) -> None:
        self.path = path
        self.reports: list[Noticed] = []
        self.memory = MemoryKills(None)
        self.news = asyncio.Event()
        kernel_log = KernelLog(table) if table else None
        self.watch = KernelWatch(
            self._report, lambda: {OURS: (RANK, 7)}, self.memory, lambda: buses, kernel_log
        )
        self.number = 0

    def _report(self, body: Body) -> None:
        assert isinstance(body, Noticed)
        self.reports.append(body)
        self.news.set()

    def write(self, *texts: str) -> None:
        with open(self.path, "w") as pipe:
            for text in texts:
                self.number += 1
                pipe.write(
                    f"4,{self.number},5000{self.number},-;{text}\n NOTE={OFF_THE_BUS.replace('b3', 'cc')}\n"
                )
                pipe.flush()

    async def until(self, count: int) -> None:
        while len(self.reports) < count:
            self.news.clear()
            await self.news.wait()


@contextlib.asynccontextmanager
async def watched(folder: Path, buses: tuple[str, ...] | None = None) -> AsyncIterator[Log]:
    os.mkfifo(folder / "kmsg")
    log = Log(folder / "kmsg", buses)
    keep = os.open(folder / "kmsg", os.O_RDWR)  # a pipe without a writer would be at its end
    assert log.watch.start(log.path)
    try:
        yield log
    finally:
        log.watch.close()
        os.close(keep)


def test_what_is_wrong_with_the_node_is_told_of_the_node(tmp_path: Path) -> None:
    async def work() -> None:
        async with watched(tmp_path) as log:
            log.write("usb 1-1: new device", OFF_THE_BUS, FAULT.format(OURS))
            await log.until(2)
            noticed, last = log.reports  # a record's dictionary is no record
            assert last.rank == RANK
            assert (noticed.rank, noticed.finding.severity) == (None, Severity.SEV1)
            assert OFF_THE_BUS in noticed.detail

    within(work())


def test_what_a_rank_did_is_told_of_the_rank_and_what_others_did_of_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        async with watched(tmp_path) as log:
            log.write(FAULT.format(OTHERS), KILLED.format(OTHERS), FAULT.format(OURS))
            await log.until(1)
            (noticed,) = log.reports
            assert (noticed.rank, noticed.epoch) == (RANK, 7)

    within(work())


def test_a_rank_that_was_killed_for_want_of_memory_is_known_by_its_process(tmp_path: Path) -> None:
    async def work() -> None:
        async with watched(tmp_path) as log:
            log.write(KILLED.format(OURS))
            await log.until(1)
            assert (log.reports[0].rank, log.reports[0].finding.error) == (RANK, "host out of memory")
            assert "Killed process" in log.memory.evidence(OURS)
            assert log.memory.evidence(OTHERS) == ""

    within(work())


def test_what_a_child_of_a_rank_did_is_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_watch, "_parent", lambda pid: OURS if pid == OTHERS else None)

    async def work() -> None:
        async with watched(tmp_path) as log:
            log.write(KILLED.format(OTHERS))
            await log.until(1)
            assert log.reports[0].rank == RANK
            assert kernel_watch._parent(os.getpid()) is None

    within(work())


def test_the_parent_of_a_process_is_read_from_the_system() -> None:
    assert kernel_watch._parent(os.getpid()) == os.getppid()
    assert kernel_watch._parent(OTHERS) is None


@pytest.mark.parametrize(
    ("buses", "severity"),
    [
        (("00000000:b3:00.0",), Severity.SEV1),
        (("00000000:1b:00.0",), Severity.INFO),
        (None, Severity.SEV1),
    ],
)
def test_another_jobs_gpu_on_a_shared_node_is_only_a_warning(
    tmp_path: Path, buses: tuple[str, ...] | None, severity: Severity
) -> None:
    async def work() -> None:
        async with watched(tmp_path, buses) as log:
            log.write(OFF_THE_BUS)
            await log.until(1)
            assert log.reports[0].finding.severity is severity

    within(work())


def test_a_flood_of_warnings_is_cut_short_but_a_bad_node_is_always_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with watched(tmp_path, ()) as log:
            for bus in range(3 * MOST_TOLD):
                log.write(OFF_THE_BUS.replace("b3", f"{bus:02x}"))
                await asyncio.sleep(0)
            log.write("mce: [Hardware Error]: Machine check events logged", KILLED.format(OURS))
            log.write("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#0_DIMM#0")
            while not any(n.finding.severity is Severity.SEV1 for n in log.reports):
                log.news.clear()
                await log.news.wait()
            assert len(log.reports) == MOST_TOLD + 1

    within(work())


def test_records_that_were_overwritten_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, lost = os.read, iter([OSError(errno.EPIPE, "Broken pipe")])

    def losing(descriptor: int, size: int) -> bytes:
        if descriptor == log_descriptor[0] and (error := next(lost, None)):
            raise error
        return read(descriptor, size)

    log_descriptor: list[int | None] = [None]

    async def work() -> None:
        async with watched(tmp_path) as log:
            log_descriptor[0] = log.watch._descriptor
            monkeypatch.setattr(os, "read", losing)
            log.write(OFF_THE_BUS)
            await log.until(1)

    within(work())


@pytest.mark.parametrize("kind", ["absent", "folder", "file"])
def test_a_log_that_cannot_be_followed_is_no_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kmsg"
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text("4,1,1,-;" + OFF_THE_BUS)

    async def work() -> None:
        log = Log(path)
        assert not log.watch.start(path)
        log.watch.close()
        assert log.reports == []

    within(work())


def test_a_record_in_the_real_log_is_seen_and_nothing_that_was_there_before() -> None:
    # Whoever else reads this machine's log must find nothing wrong with it: what is written means nothing
    # except by a rule of this test.
    record = f"unicron_hpc test of process {os.getpid()}, nothing is wrong:"
    rule = (
        "{name: t, pattern: unicron_hpc test, error: t, severity: INFO, blame: node, meaning: t, advice: t}"
    )
    table = default_table().with_rules(parse_rules(f"rules: [{rule}]", "test"))
    assert default_table().find(f"{record} after") is None

    async def work() -> None:
        try:
            device = os.open(DEVICE, os.O_WRONLY)
        except OSError as error:
            pytest.skip(f"{DEVICE} cannot be written: {error}")
        try:
            os.write(device, f"<7>{record} before\n".encode())
            log = Log(DEVICE, table=table)
            if not log.watch.start():
                pytest.skip(f"{DEVICE} cannot be read")
            os.write(device, f"<7>{record} after\n".encode())
            await log.until(1)
            log.watch.close()
            assert [noticed.detail for noticed in log.reports] == [f"kernel log: {record} after"]
        finally:
            os.close(device)

    within(work())

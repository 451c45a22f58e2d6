"""Records of the kernel log, in one line and in several."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detect.field_cases import CASES
from unicron_hpc.detect.kernel_log import KernelEvent, KernelLog
from unicron_hpc.detect.severity import Severity

LOST = (
    "NVRM: The NVIDIA GPU {pci}",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
OTHERS = (
    "eth0: renamed from veth1",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.10",
    "audit: type=1400 audit(1733.1:2): apparmor",
    "",
)
HEADS = (
    "",
    "[ 1234.567890] ",
    "[Mon Mar  3 10:00:00 2025] ",
    "Mar  3 10:00:00 gpu07 kernel: [1234.567890] ",
    "Mar  3 10:00:00 gpu07 kernel: ",
    "2025-03-03T10:00:00.123456+01:00 gpu07 kernel: ",
    "6,1234,5678901,-;",
    "<4>[ 1234.567890] ",
    "kern  :warn  : [ 1234.567890] ",
    "gpu07: [ 1234.567890] ",
)


def read(lines: list[str]) -> list[KernelEvent]:
    log = KernelLog()
    return [event for line in lines for event in log.feed(line)]


def lost(pci: str) -> list[str]:
    return [line.format(pci=pci) for line in LOST]


@pytest.mark.parametrize("head", HEADS)
def test_a_record_in_three_lines_without_a_number_is_one_event_with_its_address(head: str) -> None:
    (event,) = read([head + line for line in CASES["log_line-15"]["input"].splitlines()])
    assert event.finding.severity is Severity.SEV1
    assert event.drain
    assert (event.pci, event.xid) == (CASES["log_line-15"]["expected"]["pci"], None)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(OTHERS), min_size=3, max_size=12), st.sampled_from(HEADS), st.data())
def test_other_records_between_its_lines_do_not_hide_it(
    others: list[str], head: str, data: st.DataObject
) -> None:
    lines = list(others)
    places = sorted(data.draw(st.lists(st.integers(0, len(others)), min_size=3, max_size=3)))
    for place, line in reversed(list(zip(places, lost("0000:b3:00.0"), strict=True))):
        lines.insert(place, head + line)
    assert [event.pci for event in read(lines)] == ["0000:b3:00.0"]


def test_two_gpus_lost_at_once_are_told_apart() -> None:
    both = [line for pair in zip(lost("0000:b3:00.0"), lost("0000:c4:00.0"), strict=True) for line in pair]
    assert [event.pci for event in read(both)] == ["0000:b3:00.0", "0000:c4:00.0"]


def test_a_line_with_an_address_of_its_own_is_no_part_of_anothers_record() -> None:
    own = "NVRM: device 0000:c4:00.0 has fallen off the bus"
    assert [event.pci for event in read([lost("0000:b3:00.0")[0], own])] == ["0000:c4:00.0"]


def test_a_record_whose_end_never_comes_is_no_event_and_spoils_no_other() -> None:
    cut = lost("0000:b3:00.0")[:2]
    assert read(cut) == []
    later = read([*cut, *["x"] * 100, *lost("0000:c4:00.0")])
    assert [event.pci for event in later] == ["0000:c4:00.0"]


@pytest.mark.parametrize("head", HEADS)
def test_an_xid_tells_its_number_address_and_process(head: str) -> None:
    (event,) = read([head + CASES["log_line-07"]["input"]])
    assert (event.xid, event.pci, event.pid) == (31, "0000:1b:00", 99)
    assert not event.drain


@pytest.mark.parametrize(
    ("line", "pid"),
    [
        ("Memory cgroup out of memory: Killed process 4242 (python3) total-vm:912312kB", 4242),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/slurm,task=python3,pid=4242,uid=1000", 4242),
        ("python3[4242]: segfault at 0 ip 00007f1b sp 00007ffd error 4 in libtorch_cpu.so", 4242),
        ("Memory failure: 0x10f2a3: Sending SIGBUS to python3:4242 due to hardware memory corruption", 4242),
        ("NVRM: Xid (PCI:0000:53:00): 64, pid='<unknown>', name=<unknown>, Row Remapper", None),
        ("NVRM: Xid (PCI:0000:53:00): 13, pid='4242', name=python, Graphics Exception", 4242),
    ],
)
def test_a_record_names_its_process(line: str, pid: int | None) -> None:
    assert [event.pid for event in read([line])] == [pid]


def test_one_kill_in_two_records_is_told_once() -> None:
    records = [
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/slurm,task=python3,pid=4242,uid=1000",
        "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:912312kB",
        "Memory cgroup out of memory: Killed process 4243 (python3) total-vm:912312kB",
    ]
    assert [event.pid for event in read(records)] == [4242, 4243]


def test_an_error_that_comes_again_much_later_is_told_again() -> None:
    line = CASES["log_line-01"]["input"]
    assert len(read([line, line])) == 1
    assert len(read([line, *["x"] * 200, line])) == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60) | st.sampled_from(LOST)))
def test_no_lines_break_the_reader(lines: list[str]) -> None:
    for event in read(lines):
        assert event.finding.error

"""Whether a death was a kill for want of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unicron_hpc.supervisor.oom import WINDOW, MemoryKills, counter_file

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2 = "low 0\nhigh 0\nmax 4\noom 2\noom_kill {}\noom_group_kill 0\n"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def kills(tmp_path: Path, form: str = V2) -> tuple[MemoryKills, Path, Clock]:
    counter, clock = tmp_path / "counter", Clock()
    counter.write_text(form.format(3))
    return MemoryKills(counter, clock), counter, clock


@pytest.mark.parametrize("form", [V1, V2])
def test_a_count_that_rose_explains_one_death_each(tmp_path: Path, form: str) -> None:
    memory, counter, _ = kills(tmp_path, form)
    assert memory.evidence(7) == ""
    counter.write_text(form.format(5))
    memory.look()
    assert str(counter) in memory.evidence(7)
    assert memory.evidence(8)
    assert memory.evidence(9) == ""


def test_a_kill_of_long_ago_explains_no_new_death(tmp_path: Path) -> None:
    memory, counter, clock = kills(tmp_path)
    counter.write_text(V2.format(4))
    for _ in range(3):
        clock.now += WINDOW
        memory.look()
    assert memory.evidence(7) == ""


def test_a_kill_just_before_the_last_look_still_explains_the_death(tmp_path: Path) -> None:
    memory, counter, clock = kills(tmp_path)
    counter.write_text(V2.format(4))
    clock.now += WINDOW / 2
    memory.look()
    assert memory.evidence(7)


def test_the_kernels_own_word_goes_by_the_process(tmp_path: Path) -> None:
    memory, _, _ = kills(tmp_path)
    memory.kernel_said(7, "Out of memory: Killed process 7 (python)")
    assert memory.evidence(8) == ""
    assert "Killed process 7" in memory.evidence(7)


def test_a_counter_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    memory, counter, _ = kills(tmp_path)
    counter.unlink()
    assert memory.evidence(7) == ""
    assert MemoryKills(None).evidence(7) == ""


def proc(tmp_path: Path, groups: str, mounts: str) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mounts)
    (tmp_path / "proc" / "vmstat").write_text("nr_free_pages 5\noom_kill 9\n")
    return tmp_path / "proc"


def test_the_counter_is_that_of_the_own_cgroup_in_either_version_and_in_a_container(tmp_path: Path) -> None:
    mounts = (
        f"35 31 0:32 / {tmp_path}/v1 rw - cgroup cgroup rw,memory\n"
        f"41 31 0:38 /system/job_5 {tmp_path}/v2 rw - cgroup2 cgroup2 rw\n"
    )
    for folder, name in (("v1/job_5/step_0", "memory.oom_control"), ("v2/step_0", "memory.events.local")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(V1.format(0))
    first = proc(tmp_path, "4:memory:/job_5/step_0\n0::/\n", mounts)
    assert counter_file(first) == tmp_path / "v1/job_5/step_0/memory.oom_control"
    (first / "self" / "cgroup").write_text("0::/system/job_5/step_0\n")
    assert counter_file(first) == tmp_path / "v2/step_0/memory.events.local"
    (first / "self" / "cgroup").write_text("0::/elsewhere\n")
    assert counter_file(first) == first / "vmstat"


EATER = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
eaten = [bytes([1]) * (1 << 20) for _ in range(400)]
"""


def memory_cgroup() -> Path | None:
    """A fresh cgroup of 40 MB (version 1 or 2), where this user may make one."""
    for root, limit, counter in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.oom_control"),
        (Path("/sys/fs/cgroup"), "memory.max", "memory.events"),
    ):
        if (root / "cgroup.procs").exists():
            folder = root / f"unicron-test-{os.getpid()}"
            try:
                folder.mkdir()
                (folder / limit).write_text(str(40 << 20))
            except OSError:
                continue
            return folder / counter
    return None


def test_a_process_that_the_kernel_kills_for_want_of_memory_is_recognised() -> None:
    counter = memory_cgroup()
    if counter is None:
        pytest.skip("no memory cgroup can be made here")
    try:
        memory = MemoryKills(counter)
        eater = subprocess.run([sys.executable, "-c", EATER, str(counter.parent)], check=False)
        assert eater.returncode == -9
        assert memory.evidence(1)
        assert memory.evidence(2) == ""
    finally:
        counter.parent.rmdir()

"""What the kernel says about threads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

from tests.supervisor.events import until
from unicron_hpc.supervisor import threads


def test_a_busy_threads_time_grows_and_a_stopped_process_is_seen() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        until(lambda: threads.state_of(child.pid, child.pid) == "R")
        before = threads.times_of(child.pid, child.pid)
        until(lambda: threads.times_of(child.pid, child.pid).cpu > before.cpu)
        assert threads.delays(child.pid).keys() == {child.pid}
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert threads.state_of(child.pid, child.pid) == "T"
        assert ": T" in threads.describe(child.pid)
    finally:
        child.kill()
        child.wait()


def test_who_has_met_his_end_is_dying_until_he_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    assert not threads.is_dying(child.pid)
    child.send_signal(signal.SIGSEGV)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert threads.is_dying(child.pid)
    child.wait()
    assert not threads.is_dying(child.pid)


def test_nothing_is_known_of_who_is_gone() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert threads.state_of(child.pid, child.pid) == ""
    assert threads.times_of(child.pid, child.pid) == threads.ThreadTimes(0.0, 0.0)
    assert threads.delays(child.pid) == {}
    assert threads.describe(child.pid) == "gone"
    assert threads.kernel_stack(child.pid, child.pid) == ""


def test_like_threads_are_described_together() -> None:
    done = threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(5)]
    for other in others:
        other.start()
    try:
        pid = os.getpid()
        until(lambda: all(threads.state_of(pid, other.native_id or 0) == "S" for other in others))
        alike = [int(count) for count in re.findall(r"(\d+) x ", threads.describe(pid))]
        assert max(alike) >= len(others)
    finally:
        done.set()
        for other in others:
            other.join()

"""A rank that is told to end waits for its agent first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

RANK = """
import os, queue, sys
from unicron_hpc.runtime.termination import end_after_grace
end_after_grace(float(sys.argv[1]))
calls = queue.SimpleQueue()
print("up", flush=True)
calls.get()  # what the main thread of a rank does most of the time
"""


def started(grace: float) -> subprocess.Popen[bytes]:
    """A process that handles SIGTERM as ranks do."""
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(grace)], stdout=subprocess.PIPE)
    assert rank.stdout is not None
    rank.stdout.readline()
    return rank


def test_the_agents_word_comes_before_the_end() -> None:
    rank = started(60.0)
    rank.send_signal(signal.SIGTERM)
    # The signal has been taken once it is ignored.
    while rank.poll() is None and not _ignored(rank.pid, signal.SIGTERM):
        os.sched_yield()
    assert rank.poll() is None
    rank.kill()
    assert rank.wait() == -signal.SIGKILL
    rank.communicate()


def test_without_it_the_signal_does_what_it_says() -> None:
    rank = started(0.05)
    rank.send_signal(signal.SIGTERM)
    rank.communicate()
    assert rank.returncode == -signal.SIGTERM


def _ignored(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        mask = next(line.split()[1] for line in status if line.startswith("SigIgn"))
    return bool(int(mask, 16) >> (number - 1) & 1)

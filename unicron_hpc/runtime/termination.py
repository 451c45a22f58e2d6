"""SIGTERM in a rank: its agent has the first word.

`scancel` and the time limit send it to every process of the step at once. A rank that ended of it before the
coordinator has heard that the job ends would look like a fault, and a recovery would begin for nothing.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

#: Seconds in which the agent may end this process; then it ends as it would have at once.
GRACE = 2.0


def end_after_grace(seconds: float = GRACE) -> None:
    """From now on SIGTERM ends this process only after some seconds (main thread only)."""

    def wait(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, wait)

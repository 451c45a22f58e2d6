"""Following a journal until its run is over, also where nobody was left to write the end."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unicron_hpc.cli.standing import Standing, after_end, standing
from unicron_hpc.report.journal import EVENTS, METRICS, Tail

#: Exit code when the run is over and its journal has no end.
NO_END = 3
_NOBODY = "The journal has no end: nobody was left to write it"
#: Time between two looks at the journal, in seconds.
_LOOK = 0.5
#: After how many seconds without a word it is asked whether the run goes on, and the longest time between
#: two such questions: training is silent for as long as all goes well.
QUIET, _SELDOM = 10.0, 60.0
#: Longest time, in seconds, that Slurm is asked what becomes of a job whose journal has ended: it does not
#: say before the batch script is gone, which has `KillWait` to go.
SETTLES = 120.0


def follow(
    run_folder: Path,
    tell: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
    *,
    ask: Callable[[Path], Standing] = standing,
    ask_ended: Callable[[Path], Standing] = after_end,
    wait: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Tell every event until the run is over.

    Parameters
    ----------
    tell
        Takes each event.
    say
        Takes what the reader must know besides: a sentence for each state, once.
    ask, ask_ended, wait, clock
        How the run stands when it is quiet, and when its journal has ended; how time is waited; a monotonic
        clock.

    Returns
    -------
    int
        0 when the journal has its end, `NO_END` when it never will.
    """
    tail, silence = Tail(run_folder / EVENTS), _Silence(run_folder, clock)
    said: set[str] = set()
    end: dict[str, Any] | None = None
    queued, settles = False, 0.0
    over: Standing | None = None
    while True:
        for event in tail.events():
            tell(event)
            # A job that Slurm puts back into its queue goes on in the same journal.
            if event["type"] in ("job_started", "job_finished"):
                end = event if event["type"] == "job_finished" else None
                queued, settles = False, clock() + SETTLES
        if end is not None and not queued:
            if end.get("state") == "finished":
                return 0
            found = ask_ended(run_folder)
            if found.over or not found.state or clock() > settles:
                return 0
            if found.again:
                queued = True
                said.add(found.state)
                say(f"{found.words}; following on")
        elif over is not None:
            say(over.words if end is not None else f"{over.words}. {_NOBODY}")
            return NO_END if end is None else 0
        elif silence.is_long():
            found = ask(run_folder)
            over = found if found.over else None
            if not found.over and found.words and found.state not in said:
                said.add(found.state)
                say(f"{found.words}; following on")
        if over is None:  # else what was written just before the end is read first
            (wait or _wait)(_LOOK)


class _Silence:
    """How long nothing was written, neither events nor iterations."""

    def __init__(self, run_folder: Path, clock: Callable[[], float]) -> None:
        self._files = (run_folder / EVENTS, run_folder / METRICS)
        self._clock = clock
        self._sizes, latest = self._look()
        self._pause = QUIET
        self._next = clock() + QUIET - max(0.0, min(QUIET, time.time() - latest))

    def is_long(self) -> bool:
        """Whether it is time to ask."""
        now = self._clock()
        sizes, _ = self._look()
        if sizes != self._sizes:
            self._sizes, self._pause, self._next = sizes, QUIET, now + QUIET
        if now < self._next:
            return False
        self._next = now + self._pause
        self._pause = min(2 * self._pause, _SELDOM)
        return True

    def _look(self) -> tuple[list[int], float]:
        found = [path.stat() for path in self._files if path.exists()]
        return [stat.st_size for stat in found], max((stat.st_mtime for stat in found), default=0.0)


def _wait(seconds: float) -> None:
    """Wait, and notice at once when nobody reads any more (`| head`), also while there is nothing to write.

    Raises
    ------
    BrokenPipeError
        When the reader of our output has gone.
    """
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # no file, as in tests
        time.sleep(seconds)
        return
    poll = select.poll()
    poll.register(output, 0)
    if any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(seconds * 1000)):
        raise BrokenPipeError

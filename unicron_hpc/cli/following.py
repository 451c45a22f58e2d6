"""Following a journal until its run is over, also where nobody was left to write the end."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unicron_hpc.cli.standing import Standing, standing
from unicron_hpc.report.journal import EVENTS, METRICS, Tail

#: Exit code when the run is over and its journal has no end.
NO_END = 3
#: Time between two looks at the journal, in seconds.
_LOOK = 0.5
#: After how many seconds without a word it is asked whether the run goes on, and the longest time between
#: two such questions: training is silent for as long as all goes well.
QUIET, _SELDOM = 10.0, 60.0
_ENDS = ("job_started", "job_finished")


def follow(
    run_folder: Path,
    tell: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
    *,
    ask: Callable[[Path], Standing] = standing,
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
    ask, wait, clock
        How the run stands when it is quiet; how time is waited; a monotonic clock.

    Returns
    -------
    int
        0 when the journal has its end, `NO_END` when it never will.
    """
    tail, silence = Tail(run_folder / EVENTS), _Silence(run_folder, clock)
    said: set[str] = set()
    end: dict[str, Any] | None = None
    over: Standing | None = None
    while True:
        news = False
        for event in tail.events():
            tell(event)
            # A job that Slurm puts back into its queue goes on in the same journal.
            if event["type"] in _ENDS:
                news, end = True, event if event["type"] == "job_finished" else None
        if news and end is not None:
            found = ask(run_folder) if end.get("state") != "finished" else None
            if found is None or not found.again:
                return 0
            said.add(found.state)
            say(f"{found.words}; following on")
        if over is not None and end is not None:
            say(over.words)
            return 0
        if over is not None:
            say(f"{over.words}. The journal has no end: nobody was left to write it")
            return NO_END
        if silence.is_long():
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

"""A run watched from outside, through the files that everybody may read: journal and metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unicron_hpc.report.journal import EVENTS, METRICS

Record = dict[str, Any]

#: How often files are looked at, in seconds: their records carry their own times, so this costs no accuracy.
LOOK_INTERVAL = 0.05


class BenchError(Exception):
    """A measurement that cannot be made: what happened, and where to look."""


class _Tail:
    """Whole lines of a growing JSON-lines file, each read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._half = b""
        self.records: list[Record] = []

    def look(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        self._read += len(new)
        *lines, self._half = (self._half + new).split(b"\n")
        self.records.extend(json.loads(line) for line in lines if line)


class Watched:
    """One run.

    Parameters
    ----------
    folder
        Its run folder; may not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events = _Tail(folder / EVENTS)
        self._metrics = _Tail(folder / METRICS)

    @property
    def events(self) -> list[Record]:
        """All events until now."""
        self._events.look()
        return self._events.records

    @property
    def metrics(self) -> list[Record]:
        """All committed iterations until now."""
        self._metrics.look()
        return self._metrics.records

    def of_type(self, *types: str) -> list[Record]:
        """Return the events of these types."""
        return [event for event in self.events if event["type"] in types]

    @property
    def iteration(self) -> int:
        """The last committed iteration; 0 before the first."""
        return int(self.metrics[-1]["iteration"]) if self.metrics else 0

    @property
    def coordinator(self) -> str:
        """The node that decides."""
        return str(self.of_type("coordinator_elected")[-1]["node"])

    @property
    def ranks(self) -> list[Record]:
        """The ranks of the present epoch: `rank`, `node`, `pid`, `stage`, `replica`, `layers`."""
        return list(self.of_type("transition_finished")[-1]["ranks"])

    def agent_pid(self, node: str) -> int:
        """Return the pid of a node's agent."""
        return int(next(e["pid"] for e in reversed(self.of_type("agent_joined")) if e["node"] == node))

    def wait_for(self, what: str, condition: Callable[[], object], seconds: float = 120.0) -> None:
        """Wait until the condition holds.

        Raises
        ------
        BenchError
            When the run ends first, or it takes longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            over = self.of_type("job_finished")
            if over and not condition():
                raise BenchError(f"the run ended before {what}: {over[0].get('cause')}\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise BenchError(f"{seconds:g} s passed without {what}\n{self._last_words()}")
            time.sleep(LOOK_INTERVAL)

    def _last_words(self) -> str:
        """The end of the journal and of each log: the run folder will be gone when this is read."""
        words = [json.dumps(event)[:1000] for event in self.events[-5:]]
        for log in sorted((self.folder / "logs").glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-8:]
            words += [f"-- {log.name}", *(line[:300] for line in lines)]
        return "\n".join(words)

    def wait_iteration(self, iteration: int, seconds: float = 180.0) -> None:
        """Wait until an iteration is committed."""
        self.wait_for(f"iteration {iteration}", lambda: self.iteration >= iteration, seconds)

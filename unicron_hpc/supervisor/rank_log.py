"""A rank's log as evidence of its end: only what this process wrote, and what of it is news."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: Bytes of a dead rank's log that travel with the news of its death.
TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class LastLines:
    """The end of a log.

    Attributes
    ----------
    tail
        The last lines of the process.
    words
        Those of them that it wrote after its last report to the supervisor.
    """

    tail: str
    words: str


class RankLog:
    """The log file of a seat, of which one process writes the end.

    All methods touch the shared file system, which may hang: call them in a thread.

    Parameters
    ----------
    path
        The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun = self._told = 0

    def begin(self) -> None:
        """A process is about to be started: what is there now is not its own."""
        self._begun = self._told = self._size()

    def mark(self) -> None:
        """The process has reported; what it wrote so far does not explain its end."""
        self._told = self._size()

    def last_lines(self) -> LastLines:
        """What the process wrote last; empty where it cannot be read."""
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = max(min(self._begun, size), size - TAIL_BYTES)
                file.seek(start)
                content = file.read(TAIL_BYTES)
        except OSError:
            return LastLines("", "")
        words = content[max(0, self._told - start) :] if self._told > start else content
        cut = start > self._begun
        return LastLines(_text(content, cut), _text(words, cut and self._told <= start))

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def _text(content: bytes, cut: bool) -> str:
    """Decode; where the beginning is cut off, half a character and half a line are left out."""
    if cut:
        _, newline, rest = content.partition(b"\n")
        # A single line longer than all that is read is better cut than gone.
        content = rest if newline and rest else content.lstrip(bytes(range(0x80, 0xC0)))
    return content.decode(errors="replace")

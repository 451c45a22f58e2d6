"""Appends lines to a file without ever waiting for the disk."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

#: Bytes that wait for a slow disk at most; what comes on top is lost, and said to be.
BACKLOG = 16 * 1024 * 1024
#: How long what the file system has refused waits for another try, in seconds.
RETRY = 1.0
#: How long closing waits for the disk, in seconds: in the meantime nothing else is done.
CLOSE_LIMIT = 1.0


class Appender:
    """Appends whole lines to a file, each with one write, so that readers never see half a line.

    A thread does it: who decides for the job must go on giving signs of life while the file server hangs. A
    line that a dying predecessor left without its end is closed first. What the file system refuses is kept
    and tried again.

    Parameters
    ----------
    path
        The file, made if it is not there, readable for its owner only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._backlog = 0
        self._lost = 0
        self._closing = False
        self._refused = False
        self._thread = threading.Thread(target=self._work, name=f"append {path.name}", daemon=True)
        self._thread.start()

    def append(self, record: dict[str, Any]) -> None:
        """Have one record written as a line of JSON; after `close` nothing is written any more.

        Work that was under way when its office ended still comes to report.
        """
        self.append_line((json.dumps(record, allow_nan=True) + "\n").encode())

    def append_line(self, line: bytes) -> None:
        """Have one line written, its end included."""
        with self._changed:
            if self._closing:
                return
            full = self._backlog + len(line) > BACKLOG
            if full:
                self._lost += 1
            else:
                self._waiting.append(line)
                self._backlog += len(line)
                self._changed.notify_all()
            told = self._lost > 1
        if full and not told:
            # Outside: what is logged may come back to this very file.
            log.error("%s takes nothing any more: lines are lost", self._path)

    def flush(self, seconds: float) -> bool:
        """Wait until the system has taken everything; False when it has not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._backlog or not self._thread.is_alive(), seconds)

    def close(self, seconds: float = CLOSE_LIMIT) -> bool:
        """Have the rest written, flushed to disk and the file closed; False when it is not in time."""
        with self._changed:
            # Whatever was refused gets its last try.
            self._closing, self._refused = True, False
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._refused and not self._closing:
                    # Not at once: a full disk stays full for a while. A new line is a reason to try.
                    self._changed.wait(RETRY)
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if self._closing and (self._refused or not self._waiting):
                    break
                line = self._waiting.popleft()
            self._write(line)
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            log.error("%s may not be whole: %s", self._path, error)
        os.close(self._descriptor)

    def _write(self, line: bytes) -> None:
        """Write a line; what is refused goes back to the head of the queue."""
        rest, failure = line, None
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            failure = error
        lost = 0
        with self._changed:
            self._backlog -= len(line) - len(rest)
            if rest:
                self._waiting.appendleft(rest)
            first = failure is not None and not self._refused
            if failure is None:
                lost, self._lost = self._lost, 0
            self._refused = failure is not None
            self._changed.notify_all()
        if first:
            log.error("%s cannot be written now: %s", self._path, failure)
        if lost:
            log.error("%d lines of %s are lost", lost, self._path)

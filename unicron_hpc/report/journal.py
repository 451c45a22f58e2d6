"""The journal: one JSON object a line, appended by the coordinator, read by everything that reports."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"


class Appender:
    """Appends whole lines to a file, each with one write, so that readers never see half a line.

    A line that a dying predecessor left without its end is closed first. What the file system refuses is kept
    and written with the next record.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._unwritten = b""
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def append(self, record: dict[str, Any]) -> None:
        """Write one record as one line; after `close` nothing is written any more.

        Work that was under way when its office ended still comes to report, and the descriptor's number may
        belong to a socket by then.
        """
        if self._descriptor is None:
            return
        self._unwritten += (json.dumps(record, allow_nan=True) + "\n").encode()
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._descriptor, self._unwritten) :]
        except OSError as error:
            # A full disk must not end whoever decides: the successor would meet it, too.
            log.error("a record could not be written yet: %s", error)

    def close(self) -> None:
        """Flush to disk and close."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.fsync(descriptor)
            os.close(descriptor)


class Journal:
    """The job's events."""

    def __init__(self, run_folder: Path) -> None:
        self._file = Appender(run_folder / EVENTS)

    def write(self, event: str, epoch: int, /, **fields: Any) -> None:
        """Append an event of type `event` that happened now, or at `fields["time"]`."""
        self._file.append({"time": time.time(), "type": event, "epoch": epoch, **fields})

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal or metrics file; an unfinished or damaged line is passed over."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content.split(b"\n"):
        if line:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file so that it is there whole or not at all (temporary name, fsync, rename)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)

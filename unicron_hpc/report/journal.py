"""The journal: one JSON object a line, appended by the coordinator, read by everything that reports."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from unicron_hpc.report.appender import Appender

EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"

#: What an event of another version, or a damaged one, raises in whoever reads its fields.
NOT_AS_EXPECTED = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
#: Unix times beyond it (the year 5138) are damage, and no clock can show them.
_LATEST = 1e11


class Journal:
    """The job's events."""

    def __init__(self, run_folder: Path) -> None:
        self._file = Appender(run_folder / EVENTS)

    def write(self, event: str, epoch: int, /, **fields: Any) -> None:
        """Append an event of type `event` that happened now, or at `fields["time"]`."""
        self._file.append({"time": time.time(), "type": event, "epoch": epoch, **fields})

    def flush_file(self, seconds: float) -> bool:
        """Wait until readers see all that was written; False when that takes longer."""
        return self._file.flush(seconds)

    def close(self) -> None:
        """Write the rest and close."""
        self._file.close()


class Tail:
    """A journal that may still be written, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def events(self) -> list[dict[str, Any]]:
        """The events since the last call; a line that is not finished yet comes with the next one."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return list(_events(_records(whole)))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal or metrics file; an unfinished or damaged line is passed over."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    yield from _records(content)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a journal; what has not an event's `time`, `type` and `epoch` is passed over."""
    return _events(read_lines(path))


def _records(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.split(b"\n"):
        if line:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _events(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        when, epoch = record.get("time"), record.get("epoch")
        timed = isinstance(when, int | float) and 0 <= when < _LATEST
        if timed and isinstance(record.get("type"), str) and isinstance(epoch, int):
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

"""Reads the files of a run while they grow: the journal, the metrics, the summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Lines:
    """The records of a file that grows by whole lines.

    Parameters
    ----------
    path
        The file; it may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.all: list[Record] = []

    def new(self) -> list[Record]:
        """Return the records that came since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        records = [json.loads(line) for line in whole.splitlines() if line.strip()]
        self.all += records
        return records


def read_summary(folder: Path) -> Record | None:
    """Return the run's summary, or None while it goes on (the file appears whole or not at all)."""
    try:
        summary: Record = json.loads((folder / "summary.json").read_bytes())
    except FileNotFoundError:
        return None
    return summary

"""How a run ended, as its summary says."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from unicron_hpc.report.journal import SUMMARY


class Outcome(msgspec.Struct, frozen=True):
    """State, exit code and cause of a run that has ended."""

    state: str
    exit_code: int
    cause: str


def read_outcome(run_folder: Path) -> Outcome | None:
    """The outcome, or None while the run goes on."""
    try:
        content = json.loads((run_folder / SUMMARY).read_bytes())
        return Outcome(str(content["state"]), int(content["exit_code"]), str(content["cause"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None

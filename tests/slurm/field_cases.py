"""The inputs from the field that belong to Slurm's notations (tests/fixtures/slurm_cases.jsonl)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parents[1] / "fixtures" / "slurm_cases.jsonl"
_CASES: list[dict[str, Any]] = [json.loads(line) for line in _FILE.read_text("utf-8").splitlines()]


def cases(kind: str) -> list[Any]:
    """Parameters for pytest: (input, expected) of every case of a kind."""
    found = [pytest.param(c["input"], c["expected"], id=c["id"]) for c in _CASES if c["kind"] == kind]
    assert found, kind
    return found


def case(case_id: str) -> tuple[Any, Any]:
    """Input and expected of one case."""
    return next((c["input"], c["expected"]) for c in _CASES if c["id"] == case_id)

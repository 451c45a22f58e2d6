"""The inputs from the field that belong to detection (cases.jsonl beside this file)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LINES = (Path(__file__).parent / "cases.jsonl").read_text("utf-8").splitlines()
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in map(json.loads, _LINES)}

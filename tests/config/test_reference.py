"""docs/config.md says what the settings are."""

from __future__ import annotations

from pathlib import Path

from tests.config.settings_text import VALID, load_text, problems
from unicron_hpc.config import SlurmSettings
from unicron_hpc.config.reference import reference

_DOCS = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_reference_is_up_to_date() -> None:
    assert _DOCS.read_text("utf-8") == reference(), (
        "run: python -m unicron_hpc.config.reference > docs/config.md"
    )


def test_every_setting_has_a_meaning() -> None:
    rows = [
        line.split(" | ")
        for line in reference().splitlines()
        if line.startswith("| `") and line.count(" | ") == 3
    ]
    assert len(rows) > len(SlurmSettings.model_fields)
    assert all(row[1].strip() and len(row[3].strip(" |")) > 4 for row in rows)


def test_what_the_reference_says_of_values_holds() -> None:
    assert load_text(VALID.replace("lr: 1e-3", "lr: 1e-5")).train.lr == 1e-5
    assert load_text(VALID, ["slurm.time=72:00:00"]).slurm.time_seconds == 72 * 3600
    assert load_text(VALID, ['slurm.account="0123"']).slurm.account == "0123"
    assert problems(VALID, ["slurm.account=0x1f"])
    assert problems(VALID, ["slurm.nodes="])
    assert load_text(VALID, ["slurm.partition="]).slurm.partition is None

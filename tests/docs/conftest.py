"""Makes the modules of slurm/ importable, which belong to the repository and not to the package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "slurm"))

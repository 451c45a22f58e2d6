"""Entry point of `slurm/quickstart`."""

from __future__ import annotations

import sys
from pathlib import Path

# Run by path, so the folder of the package's parent has to take the place of the package's own.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from quickstart_steps.cli import main  # noqa: E402

sys.exit(main(sys.argv[1:]))

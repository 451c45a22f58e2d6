"""Test clusters: a real Slurm on this machine (embedded) or in Docker, made to be broken on purpose.

Standard library only: these modules run before the repository is set up.
"""

from __future__ import annotations

"""The planner's part in a submission: what the file leaves open, and what its reader should know."""

from __future__ import annotations

from pathlib import Path

import click

from unicron_hpc.config import Settings
from unicron_hpc.errors import UnicronError
from unicron_hpc.planner.submission import choose
from unicron_hpc.runtime.manifest import read_manifest


def chosen(settings: Settings) -> Settings:
    """Settings with what the planner chose; tells so on stderr.

    Raises
    ------
    PlanError
        When no layout fits.
    """
    saved = {
        task.name: size
        for task in settings.tasks
        if task.checkpoint.resume and (size := saved_micro_batch_size(task.checkpoint.dir)) is not None
    }
    found = choose(settings, saved)
    for line in found.lines:
        click.echo(line, err=True)
    for note in found.notes:
        click.echo(f"warning: {note}", err=True)
    return found.settings


def saved_micro_batch_size(folder: Path) -> int | None:
    """The micro-batch size of the newest checkpoint that tells it; None where there is none."""
    for path in sorted(folder.glob("iter_*[0-9]"), reverse=True):
        try:
            size = read_manifest(path).layout.get("micro_batch_size")
        except UnicronError:
            continue  # half-written or damaged: the job will skip it, too
        return size if isinstance(size, int) and size > 0 else None
    return None

"""`unicron events JOB`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.cli.find_run import find_run_folder
from unicron_hpc.report.journal import EVENTS, read_lines

#: Fields that are shown only with --json: long, or shown elsewhere.
_HIDDEN = {"time", "type", "epoch", "evidence", "ranks", "replicas", "steps", "detail", "incarnation"}


@click.command("events")
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="The journal's own lines, for programs.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has finished.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where run folders lie, for a job that Slurm has forgotten.",
)
@ends_with_errors
def command(job: str, as_json: bool, follow: bool, run_dir: Path | None) -> None:
    """Show what happened in JOB (a job id, or a run folder), oldest first.

    \b
      unicron events 4711
      unicron events --follow 4711
    """
    for event in _events(find_run_folder(job, run_dir) / EVENTS, follow):
        click.echo(json.dumps(event) if as_json else describe(event))


def _events(path: Path, follow: bool) -> Iterator[dict[str, Any]]:
    seen = 0
    while True:
        finished = False
        for event in list(read_lines(path))[seen:]:
            seen += 1
            finished = finished or event["type"] == "job_finished"
            yield event
        if finished or not follow:
            return
        time.sleep(0.5)


def describe(event: dict[str, Any]) -> str:
    """One event on one line: local time, epoch, type, and what belongs to it."""
    clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
    fields = " ".join(
        f"{key}={_short(value)}"
        for key, value in event.items()
        if key not in _HIDDEN and value not in (None, "")
    )
    return (
        f"{clock}.{int(event['time'] * 1000) % 1000:03d} [{event['epoch']}] {event['type']} {fields}".rstrip()
    )


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{key}:{inner}" for key, inner in value.items())
    return str(value)

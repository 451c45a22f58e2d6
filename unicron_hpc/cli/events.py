"""`unicron events JOB`."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from unicron_hpc.cli import following
from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.cli.find_run import find_run_folder
from unicron_hpc.report.journal import EVENTS, read_events
from unicron_hpc.report.plain import plain
from unicron_hpc.report.sentences import sentence
from unicron_hpc.report.story import incidents_of
from unicron_hpc.report.telling import day_of, incident_lines


@click.command("events")
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="For programs: the journal's own lines, or a list.")
@click.option("--incidents", is_flag=True, help="Tell each incident as a whole, instead of every event.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where run folders lie, for a job that Slurm has forgotten.",
)
@ends_with_errors
def command(job: str, as_json: bool, incidents: bool, follow: bool, run_dir: Path | None) -> None:
    """Show what happened in JOB (a job id, or a run folder), oldest first: time, [epoch], event.

    A line with the date stands before events of another day than today, or than those before.

    \b
      unicron events 4711
      unicron events --follow 4711
      unicron events --incidents 4711      what broke, how we know, what was done, how long it took

    With --follow, exit code 3 means that the job is over and nobody was left to write its end.
    """
    if incidents and follow:
        raise click.UsageError("--incidents tells what has happened so far: leave out --follow")
    run_folder = find_run_folder(job, run_dir)
    path = run_folder / EVENTS

    day = day_of(time.time())

    def tell(event: dict[str, Any]) -> None:
        nonlocal day
        if as_json:
            click.echo(json.dumps(event))
            return
        if (then := day_of(event["time"])) != day:
            day = then
            click.echo(day)
        click.echo(describe(event))

    if incidents:
        _tell_incidents(path, as_json)
    elif follow:
        sys.exit(following.follow(run_folder, tell, lambda words: click.echo(words, err=True)))
    else:
        for event in read_events(path):
            tell(event)


def _tell_incidents(path: Path, as_json: bool) -> None:
    stories = incidents_of(read_events(path))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(story) for story in stories]))
    elif not stories:
        click.echo("no incident so far")
    for story in () if as_json else stories:
        click.echo("\n".join(map(plain, incident_lines(story))))


def describe(event: dict[str, Any]) -> str:
    """One event on one line: local time, epoch, and what happened."""
    clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
    return f"{clock}.{int(event['time'] * 1000) % 1000:03d} [{event['epoch']}] {plain(sentence(event))}"

"""`unicron status JOB`."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.cli.find_run import find_run_folder
from unicron_hpc.errors import UnicronError
from unicron_hpc.report.journal import EVENTS, read_events
from unicron_hpc.report.plain import plain
from unicron_hpc.report.sentences import names, seconds
from unicron_hpc.report.status import read_status
from unicron_hpc.report.story import incidents_of
from unicron_hpc.report.telling import guilty
from unicron_hpc.slurm import queries

if TYPE_CHECKING:
    from rich.console import Console

#: Incidents that `status` shows.
MOST_INCIDENTS = 5


@click.command("status")
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where run folders lie, for a job that Slurm has forgotten.",
)
@ends_with_errors
def command(job: str, as_json: bool, run_dir: Path | None) -> None:
    """Show what JOB is doing: its nodes, who coordinates, each rank with its layers, the iteration.

    JOB is a job id, or a run folder.

    \b
      unicron status 4711
      unicron status --json runs/gpt-tiny-4711 | jq .iteration
    """
    status = ask_slurm(read_status(find_run_folder(job, run_dir)))
    if as_json:
        click.echo(json.dumps(status))
    else:
        _show(status)


def ask_slurm(status: dict[str, Any]) -> dict[str, Any]:
    """Let Slurm correct the state of a job whose journal was left open.

    A job that waits has no journal yet, and one that was killed with all its agents could not close it.
    """
    folder_id = Path(status["run_dir"]).name.rpartition("-")[2]
    job_id = status["job_id"] or folder_id
    if status["state"] not in ("PENDING", "RUNNING") or not job_id.isdigit() or not shutil.which("scontrol"):
        return {**status, "job_id": job_id, "shown_id": status["shown_id"] or job_id}
    try:
        state = queries.job(job_id).state.name
    except UnicronError:
        state = "UNKNOWN"
    # slurmctld forgets ended jobs after MinJobAge; then the journal's word is all there is.
    shown = status["shown_id"] or job_id
    return {
        **status,
        "job_id": job_id,
        "shown_id": shown,
        "state": status["state"] if state == "UNKNOWN" else state,
    }


def _show(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    left = f"  time left {seconds(status['ends'] - time.time())}" if _has_time(status) else ""
    console.print(
        f"job {status['shown_id']}  [bold]{status['state']}[/bold]  epoch {status['epoch']}  "
        f"coordinator {status['coordinator']}  incidents {status['incidents']}{left}"
    )
    for task, last in status["train_iters"].items():
        console.print(f"task {task}: iteration {status['iterations'].get(task, 0)} of {last}")
    if status["cause"]:
        console.print(plain(f"cause: {status['cause']}"), markup=False)
    table = Table("node", "role", "agent", "rank", "pid", "task", "replica", "stage", "layers")
    for node in status["nodes"]:
        rows = node["ranks"] or [None]
        for rank in rows:
            head = (node["name"], node["role"], str(node["agent_pid"] or "-"))
            if rank is None:
                table.add_row(*head)
            else:
                first, last = rank["layers"]
                cells = (rank["rank"], rank["pid"], rank["task"], rank["replica"], rank["stage"])
                table.add_row(*head, *map(str, cells), f"{first}-{last}")
    console.print(table)
    _show_incidents(console, Path(status["run_dir"]))
    console.print(f"run folder {status['run_dir']}", markup=False, soft_wrap=True)


def _has_time(status: dict[str, Any]) -> bool:
    return status["state"] == "RUNNING" and (status["ends"] or 0) > time.time()


def _show_incidents(console: Console, run_folder: Path) -> None:
    """The latest incidents, a line each; `unicron events --incidents` tells all of each."""
    from rich.markup import escape
    from rich.table import Table

    stories = incidents_of(read_events(run_folder / EVENTS))
    if not stories:
        return
    table = Table("incident", "what broke", "where", "how we know", "how long", title="latest incidents")
    for story in stories[-MOST_INCIDENTS:]:
        took = seconds(story.seconds) if story.seconds is not None else story.ended
        cells = (f"{story.error}, {story.severity}", guilty(story), names(story.methods), took)
        table.add_row(str(story.number), *(escape(plain(cell)) for cell in cells))
    console.print(table)
    console.print(f"unicron events --incidents {run_folder} tells each of them", markup=False, soft_wrap=True)

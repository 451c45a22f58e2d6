"""`unicron status JOB`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.cli.find_run import find_run_folder, job_of
from unicron_hpc.cli.standing import put_back, standing
from unicron_hpc.report.journal import EVENTS, read_events
from unicron_hpc.report.plain import plain
from unicron_hpc.report.sentences import ACTIONS, names, seconds
from unicron_hpc.report.status import read_status
from unicron_hpc.report.story import incidents_of
from unicron_hpc.report.telling import culprit

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
    status = ask_others(read_status(find_run_folder(job, run_dir)))
    if as_json:
        click.echo(json.dumps(status))
    else:
        _show(status)


def ask_others(status: dict[str, Any]) -> dict[str, Any]:
    """Let Slurm, or the machine of a run without it, correct the state that a journal was left with.

    A job that waits has no journal yet, one that was killed with all its agents could not close it, and one
    that was cancelled may have been put back into the queue.
    """
    run_folder = Path(status["run_dir"])
    job_id = status["job_id"] or job_of(run_folder)
    status = {**status, "job_id": job_id, "shown_id": status["shown_id"] or job_id, "note": ""}
    found = None
    if status["state"] in ("PENDING", "RUNNING"):
        found = standing(run_folder)
    elif status["state"] == "CANCELLED" and job_id.isdigit():
        found = put_back(job_id)
    if found is None:
        return status
    if found.over:
        return {**status, "state": found.state, "cause": status["cause"] or found.words}
    last = "; this is what its journal said last" if found.words and not found.state else ""
    return {**status, "state": found.state or status["state"], "note": f"{found.words}{last}"}


def _show(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    left = f"  time left {seconds(status['ends'] - time.time())}" if _has_time(status) else ""
    console.print(
        f"job {status['shown_id']}  [bold]{status['state']}[/bold]  epoch {status['epoch']}  "
        f"coordinator {status['coordinator'] or '-'}  incidents {status['incidents']}{left}"
    )
    for task, last in status["train_iters"].items():
        console.print(f"task {task}: iteration {status['iterations'].get(task, 0)} of {last}")
    if status["cause"]:
        console.print(plain(f"cause: {status['cause']}"), markup=False)
    if status["note"]:
        console.print(plain(status["note"]), markup=False)
    title = None if status["state"] in ("RUNNING", "PENDING") else "where everything was last"
    table = Table("node", "role", "agent", "rank", "pid", "task", "replica", "stage", "layers", title=title)
    for node in status["nodes"]:
        rows = node["ranks"] or [None]
        for rank in rows:
            agent = node["agent_pid"] if node["role"] != "lost" else None
            head = (plain(str(node["name"])), node["role"], str(agent or "-"))
            if rank is None:
                table.add_row(*head)
            else:
                first, last = rank["layers"]
                cells = (rank["rank"], rank["pid"], rank["task"], rank["replica"], rank["stage"])
                table.add_row(*head, *map(str, cells), f"{first}-{last}")
    if status["nodes"]:
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
    columns = ("incident", "what broke", "where", "how we know", "what was done", "how long")
    table = Table(*columns, title="latest incidents")
    for story in stories[-MOST_INCIDENTS:]:
        took = seconds(story.seconds) if story.seconds is not None else story.ended
        done = f"{story.severity}: {ACTIONS.get(story.severity, 'see there')}"
        cells = (story.error, culprit(story), names(story.methods), done, took)
        table.add_row(str(story.number), *(escape(plain(cell)) for cell in cells))
    console.print(table)
    console.print(f"unicron events --incidents {run_folder} tells each of them", markup=False, soft_wrap=True)

"""`unicron status JOB`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click

from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.cli.find_run import find_run_folder
from unicron_hpc.errors import UnicronError
from unicron_hpc.report.status import read_status
from unicron_hpc.slurm import queries


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
        return {**status, "job_id": job_id}
    try:
        state = queries.job(job_id).state.name
    except UnicronError:
        state = "UNKNOWN"
    # slurmctld forgets ended jobs after MinJobAge; then the journal's word is all there is.
    return {**status, "job_id": job_id, "state": status["state"] if state == "UNKNOWN" else state}


def _show(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"job {status['job_id']}  [bold]{status['state']}[/bold]  epoch {status['epoch']}  "
        f"coordinator {status['coordinator']}  incidents {status['incidents']}"
    )
    for task, last in status["train_iters"].items():
        console.print(f"task {task}: iteration {status['iterations'].get(task, 0)} of {last}")
    if status["cause"]:
        console.print(f"cause: {status['cause']}", markup=False)
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
    console.print(f"run folder {status['run_dir']}", markup=False, soft_wrap=True)

"""Bad nodes of earlier jobs, or of this job before it was requeued, that the job has got all the same.

Training begins without them where the job has spares, and they are the last spares to be used. The batch
script's process sees to it before any agent runs, and again when Slurm has put the job back into its queue.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from unicron_hpc.config import Settings
from unicron_hpc.report.journal import Journal
from unicron_hpc.slurm import avoiding
from unicron_hpc.supervisor.allocation import Allocation


def bad_nodes_last(allocation: Allocation, settings: Settings, run_folder: Path) -> Allocation:
    """The allocation with bad nodes behind the others; the journal tells of them."""
    bad = avoiding.known_bad(settings, allocation.nodes)
    if not bad:
        return allocation
    nodes = avoiding.bad_ones_last(allocation.nodes, bad)
    active = nodes[: allocation.active]
    _tell(
        run_folder,
        "bad_nodes_last",
        nodes={entry.node: entry.why for entry in bad},
        active=[entry.node for entry in bad if entry.node in active],
    )
    return msgspec.structs.replace(allocation, nodes=nodes)


def leave_out_after_requeue(allocation: Allocation, settings: Settings, run_folder: Path) -> None:
    """If Slurm has put this job back into its queue, have it leave bad nodes out next time."""
    notes = avoiding.after_requeue(settings, allocation.job_id)
    for note in notes:
        print(f"unicron: next attempt: {note}", flush=True)
    if notes:
        _tell(run_folder, "job_requeued", notes=list(notes))


def _tell(run_folder: Path, event: str, **fields: object) -> None:
    """Write to the journal; no coordinator does at these times."""
    journal = Journal(run_folder)
    journal.write(event, 0, **fields)
    journal.close()

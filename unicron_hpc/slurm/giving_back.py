"""Giving a node back to Slurm before the job ends, by shrinking the job. Best effort."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import commands, hostlists, parsing
from unicron_hpc.slurm.commands import Completed


def _run_aside(argv: Sequence[str]) -> Completed:
    """Run in a folder that is thrown away: scontrol leaves scripts there that set a shell's variables."""
    with tempfile.TemporaryDirectory() as folder:
        return commands.run(argv, cwd=folder)


def give_back(
    job_id: str, node: str, *, run: Callable[[Sequence[str]], Completed] = _run_aside
) -> tuple[bool, str]:
    """Shrink the job by a node.

    Returns
    -------
    tuple
        Whether Slurm did it, and its words where not.
    """
    try:
        shown = run(["scontrol", "show", "job", "--oneliner", job_id])
        record = parsing.parse_show_job(shown.stdout).get(job_id)
        if record is None:
            return False, shown.words or f"Slurm does not know job {job_id}"
        left = [name for name in record.nodes if name != node]
        if node not in record.nodes:
            return True, f"Slurm has taken {node} from the job already"
        if node == record.batch_host or not left:
            return False, f"{node} runs the job's batch script, without which Slurm ends the job"
        done = run(["scontrol", "update", f"JobId={job_id}", f"NodeList={hostlists.fold(left)}"])
    except SlurmError as error:
        return False, error.message
    return done.code == 0, done.words

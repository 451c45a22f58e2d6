"""What Slurm's variables say about the job that this process is in. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import hostlists

#: man sbatch, SLURM_TASKS_PER_NODE: "2(x3),1" are three nodes with two tasks and one with one.
_REPEATED = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?", re.ASCII)
#: man sbatch, --gpus-per-node: `[type:]number`, several with commas between them.
_GPUS = re.compile(r"(?:[^:,\s]+:)?(\d+)", re.ASCII)
_MOST_NODES = 1_000_000
_HINT = "This runs inside a Slurm job: use unicron-sbatch."


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The job.

    Attributes
    ----------
    job_id
        The job's own number, unique also for each task of an array.
    shown_id
        How Slurm's commands show it: `100_3` for a task of an array.
    nodes
        The nodes that were granted, in Slurm's order.
    tasks
        Tasks of the job on each of them; empty where Slurm did not say.
    gpus_on_node
        GPUs of the job on this node; None where none were asked for.
    ends
        Unix time at which the time limit ends the job; None where Slurm did not say (before 23.11).
    node
        This node.
    """

    job_id: str
    shown_id: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...]
    gpus_on_node: int | None
    ends: int | None
    node: str

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the time limit."""
        return None if self.ends is None else self.ends - now


def read_job_environment(environment: Mapping[str, str]) -> JobEnvironment:
    """Read the variables of a job; all but its number and nodes may be absent.

    Raises
    ------
    SlurmError
        When this is no job, or its variables contradict each other.
    """
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        if not environment.get(name):
            raise SlurmError(f"{name} is not set", hint=_HINT)
    job_id = environment["SLURM_JOB_ID"]
    nodes = tuple(hostlists.expand(environment["SLURM_JOB_NODELIST"]))
    tasks = tuple(expand_counts(environment.get("SLURM_TASKS_PER_NODE", "")))
    if tasks and len(tasks) != len(nodes):
        raise SlurmError(
            f"SLURM_TASKS_PER_NODE={environment['SLURM_TASKS_PER_NODE']} is of {len(tasks)} nodes,"
            f" SLURM_JOB_NODELIST={environment['SLURM_JOB_NODELIST']} of {len(nodes)}",
            hint="One of them was left over from another job; submit from a shell that is in no job.",
        )
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    ends = environment.get("SLURM_JOB_END_TIME", "")
    return JobEnvironment(
        job_id=job_id,
        shown_id=f"{array}_{task}" if array and task else job_id,
        nodes=nodes,
        tasks=tasks,
        gpus_on_node=_gpus(environment),
        ends=int(ends) if ends.isascii() and ends.isdecimal() else None,
        node=environment.get("SLURMD_NODENAME") or nodes[0],
    )


def expand_counts(text: str) -> list[int]:
    """`2(x3),1` as [2, 2, 2, 1].

    Raises
    ------
    SlurmError
        When it is not of this form.
    """
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = _REPEATED.fullmatch(part.strip())
        if match is None or len(counts) + int(match[2] or 1) > _MOST_NODES:
            raise SlurmError(f"{text!r} are no counts per node", where="SLURM_TASKS_PER_NODE", hint=_HINT)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _gpus(environment: Mapping[str, str]) -> int | None:
    """GPUs on this node: Slurm's own count first, else what was asked for per node."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        parts = [_GPUS.fullmatch(part.strip()) for part in environment.get(name, "").split(",")]
        if all(parts):
            return sum(int(part[1]) for part in parts if part)
    return None

"""What this package needs of Slurm as one protocol, and its implementation on Slurm's commands.

A second implementation on pyslurm has to pass the same tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from unicron_hpc.slurm import commands, drain, queries
from unicron_hpc.slurm.drain import DrainResult
from unicron_hpc.slurm.parsing import JobRecord
from unicron_hpc.slurm.states import NodeState


class SlurmBackend(Protocol):
    """Access to a Slurm cluster. Every method raises SlurmError when Slurm does not answer."""

    def version(self) -> tuple[int, int, int]:
        """Slurm's major, minor and micro version."""
        ...

    def job(self, job_id: str) -> JobRecord:
        """A job; its state is `UNKNOWN` when Slurm knows it no more."""
        ...

    def node_states(self, nodes: Sequence[str] = ()) -> Mapping[str, NodeState]:
        """States of the named nodes, or of all."""
        ...

    def drain(self, node: str, cause: str, job_nodes: Iterable[str], *, job_id: str) -> DrainResult:
        """Have a node of ours take no new job; a refusal is a result, not an error."""
        ...

    def cancel(self, job_id: str) -> None:
        """End a job."""
        ...


class CommandLine:
    """Slurm through its commands."""

    def version(self) -> tuple[int, int, int]:
        return queries.slurm_version()

    def job(self, job_id: str) -> JobRecord:
        return queries.job(job_id)

    def node_states(self, nodes: Sequence[str] = ()) -> Mapping[str, NodeState]:
        return queries.node_states(nodes)

    def drain(self, node: str, cause: str, job_nodes: Iterable[str], *, job_id: str) -> DrainResult:
        return drain.drain(node, cause, job_nodes, job_id=job_id)

    def cancel(self, job_id: str) -> None:
        done = commands.run(["scancel", job_id])
        if done.code:
            raise done.error()

"""The nodes that Slurm gave the job, as every agent reads them from the run folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from unicron_hpc.errors import UnicronError

ALLOCATION_FILE = "allocation.json"


class Allocation(msgspec.Struct, frozen=True):
    """What was granted.

    Attributes
    ----------
    job_id
        Slurm's job id, or `local-...` without Slurm.
    nodes
        All nodes in Slurm's order; the first coordinates at the start.
    active
        How many of them train; the others are spares.
    slots
        Ranks that each node can hold.
    batch_node
        Node of the batch script; empty without Slurm.
    shown_id
        How Slurm's commands show the job: `100_3` for a task of an array.
    ends
        Unix time of the time limit; None where it is not known.
    """

    job_id: str
    nodes: tuple[str, ...]
    active: int
    slots: int
    batch_node: str = ""
    shown_id: str = ""
    ends: int | None = None

    @property
    def on_slurm(self) -> bool:
        return bool(self.batch_node)


def write_allocation(run_folder: Path, allocation: Allocation) -> None:
    """Write it where the agents look."""
    path = run_folder / ALLOCATION_FILE
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(allocation), indent=2))
    temporary.chmod(0o600)
    temporary.replace(path)


def read_allocation(run_folder: Path) -> Allocation:
    """Read it.

    Raises
    ------
    UnicronError
        When the file is missing or damaged.
    """
    path = run_folder / ALLOCATION_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Allocation)
    except (OSError, msgspec.DecodeError) as error:
        raise UnicronError(f"cannot read the allocation: {error}", where=str(path)) from error

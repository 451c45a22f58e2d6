"""Whether a node's silence was wanted: the job is being ended, or somebody has the node switched off."""

from __future__ import annotations

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import queries
from unicron_hpc.slurm.states import JobState, NodeState

#: States of a job whose processes nobody ends on purpose; of one that Slurm has forgotten nothing is known.
_GOES_ON = frozenset({"RUNNING", "NODE_FAIL", "UNKNOWN"})
_SWITCHED_OFF = frozenset(
    {
        "MAINTENANCE", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED",
    }
)  # fmt: skip


def wanted(job_id: str, node: str) -> str:
    """Why nobody is to blame for the silence of a node; empty where that is not known to be so.

    Slurm not answering is no answer: then the node counts as lost by itself.
    """
    try:
        job = queries.job(job_id).state
        state = queries.node_states([node]).get(node)
    except SlurmError:
        return ""
    return why(job, node, state)


def why(job: JobState, node: str, state: NodeState | None) -> str:
    """The same, from what Slurm says of the job and the node."""
    if job.name not in _GOES_ON:
        return f"Slurm has the job as {job.name}: its processes were ended on purpose"
    if state is not None and _SWITCHED_OFF & set(state.flags):
        return f"somebody has {node} rebooted, serviced or switched off ({state})"
    return ""

"""What slurmctld says of nodes that the members of a job cannot agree on."""

from __future__ import annotations

from collections.abc import Sequence

from unicron_hpc.errors import UnicronError
from unicron_hpc.slurm.queries import node_states
from unicron_hpc.slurm.states import NodeState
from unicron_hpc.slurm.topology import leaf_switches
from unicron_hpc.supervisor.allocation import Allocation


def missing_are_down(allocation: Allocation, nodes: Sequence[str]) -> bool:
    """Whether Slurm, too, has lost every one of these nodes.

    Without Slurm all agents live on one machine and a silent one is dead, not cut off.
    """
    if not allocation.on_slurm:
        return True
    try:
        states = node_states(nodes)
    except UnicronError:
        return False
    return all(node in states and _lost(states[node]) for node in nodes)


def this_node_is_well(allocation: Allocation, node: str) -> bool:
    """Whether slurmctld can be asked and does not think this node lost."""
    if not allocation.on_slurm:
        return True
    try:
        states = node_states([node])
    except UnicronError:
        return False
    return node in states and not _lost(states[node])


def failure_domains(allocation: Allocation) -> Sequence[frozenset[str]]:
    """Nodes of the job that share a leaf switch, where Slurm knows the network; empty where it does not."""
    if not allocation.on_slurm:
        return ()
    try:
        switches = leaf_switches()
    except UnicronError:
        return ()
    ours = (frozenset(nodes) & frozenset(allocation.nodes) for nodes in switches)
    return tuple(nodes for nodes in ours if len(nodes) > 1)


def _lost(state: NodeState) -> bool:
    """Whether slurmctld gets no answer from the node."""
    return state.base == "DOWN" or "NOT_RESPONDING" in state.flags

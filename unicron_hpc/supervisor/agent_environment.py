"""What an agent reads from its environment, and what it hands on to its ranks."""

from __future__ import annotations

from collections.abc import Mapping

from unicron_hpc.errors import UnicronError
from unicron_hpc.runtime.environment import INTERFACE
from unicron_hpc.supervisor.address import interface_of

#: Variable that names this node where there is no Slurm.
NODE_VARIABLE = "UNICRON_NODE"


def rank_environment(environment: Mapping[str, str], host: str) -> dict[str, str]:
    """Environment of zygote and ranks: the agent's own, less what would lead the groups astray."""
    clean = {
        key: value
        for key, value in environment.items()
        if not key.lower().endswith("_proxy")
        and key not in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    }
    clean.setdefault("OMP_NUM_THREADS", "1")
    interface = clean.get(INTERFACE) or interface_of(host)
    if interface:
        clean["GLOO_SOCKET_IFNAME"] = interface
    return clean


def node_name(environment: Mapping[str, str]) -> str:
    """This node's identity.

    Raises
    ------
    UnicronError
        When neither Slurm nor the local launcher has said it.
    """
    name = environment.get(NODE_VARIABLE) or environment.get("SLURMD_NODENAME")
    if not name:
        raise UnicronError(
            "neither SLURMD_NODENAME nor UNICRON_NODE is set",
            hint="Agents are started by the job; use unicron-sbatch (or --cluster local).",
        )
    return name

"""Which nodes hang on the same switch, as Slurm's topology plugin knows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unicron_hpc.slurm import commands, hostlists

_LEAF = re.compile(r"SwitchName=\S+\s+Level=0\s.*?\bNodes=(\S+)")


def parse_topology(text: str) -> Sequence[tuple[str, ...]]:
    """The nodes of every leaf switch in the output of `scontrol show topology`.

    A cluster whose switches are not described (topology/default, topology/none) yields nothing.
    """
    return tuple(tuple(hostlists.expand(nodes)) for nodes in _LEAF.findall(text))


def leaf_switches() -> Sequence[tuple[str, ...]]:
    """Ask slurmctld.

    Raises
    ------
    SlurmError
        When Slurm does not answer.
    """
    return parse_topology(commands.run(["scontrol", "show", "topology"]).stdout)

"""Whom a drill is about: what the user named, or a sensible choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from unicron_hpc.errors import ConfigError
from unicron_hpc.supervisor.drill_kinds import Kind


class Target(msgspec.Struct, frozen=True):
    """A node, or one rank of it.

    Attributes
    ----------
    node
        Its name.
    task, slot, pid, rank
        The rank; empty, -1, 0 and None for the whole node.
    """

    node: str
    task: str = ""
    slot: int = -1
    pid: int = 0
    rank: int | None = None


def choose(
    name: str,
    kind: Kind,
    ranks: Sequence[Mapping[str, Any]],
    coordinator: str,
    nodes: Collection[str],
    *,
    node: str | None,
    rank: int | None,
    task: str | None,
) -> Target:
    """The target among the ranks of the running epoch.

    Parameters
    ----------
    name, kind
        The drill.
    ranks
        `transition_finished`'s ranks, of every task.
    coordinator
        Node of the coordinator; others are chosen first.
    nodes
        The job's nodes, less those that are out.
    node, rank, task
        What the user asked for.

    Raises
    ------
    ConfigError
        When there is no such rank or node.
    """
    if node is not None and node not in nodes:
        raise ConfigError(f"there is no node {node} in the job", hint=f"Nodes: {', '.join(nodes)}")
    left = [r for r in ranks if task in (None, r["task"]) and node in (None, r["node"])]
    if rank is not None:
        left = [r for r in left if r["rank"] == rank]
    if not left and node is not None and rank is None and not kind.of_rank:
        return Target(node)  # a spare
    if kind.of_rank and name == "exception-data":
        last = {(r["task"], r["replica"]): 0 for r in ranks}
        for r in ranks:
            last[r["task"], r["replica"]] = max(last[r["task"], r["replica"]], r["stage"])
        left = [r for r in left if r["stage"] in (0, last[r["task"], r["replica"]])]
        if not left:
            raise ConfigError(
                "no such rank reads data: only first and last stages do", hint="Leave out --rank."
            )
    if not left:
        there = ", ".join(f"{r['rank']} on {r['node']}" for r in ranks)
        raise ConfigError(
            "there is no such rank", hint=f"Ranks: {there}" if there else "No rank computes now."
        )
    found = max(left, key=lambda r: (r["node"] != coordinator, r["rank"]))
    if not kind.of_rank:
        return Target(found["node"])
    return Target(found["node"], found["task"], found["slot"], found["pid"], found["rank"])

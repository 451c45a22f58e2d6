"""The nodes of the job as the coordinator knows them: who is there, who trains, who has gone silent."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from unicron_hpc.detect.severity import LOST_CONNECTION, Method
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.messages import Member, Role


@dataclass(slots=True)
class Node:
    """One node.

    Attributes
    ----------
    heard
        Monotonic time of the last sign of life; None before the first.
    warm
        Its zygote has done its imports.
    """

    name: str
    role: Role
    address: str = ""
    agent_pid: int = 0
    slots: int = 0
    heard: float | None = None
    warm: bool = False

    @property
    def joined(self) -> bool:
        return self.heard is not None

    @property
    def alive(self) -> bool:
        return self.joined and self.role is not Role.LOST


class Members:
    """All nodes of the allocation, in Slurm's order."""

    def __init__(self, nodes: Sequence[str], active: int) -> None:
        self._nodes = {
            name: Node(name, Role.ACTIVE if place < active else Role.SPARE)
            for place, name in enumerate(nodes)
        }

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def adopt(self, members: Sequence[Member], now: float) -> None:
        """Take over a predecessor's knowledge; every node that was alive gets a fresh deadline."""
        for member in members:
            node = self._nodes.setdefault(member.node, Node(member.node, member.role))
            node.role, node.address, node.slots = member.role, member.address, member.slots
            node.agent_pid = member.agent_pid
            if member.role is not Role.LOST and member.address:
                node.heard = now

    def alive(self) -> list[Node]:
        return [node for node in self if node.alive]

    def present(self, own: str) -> list[Node]:
        """Nodes with an agent to talk to; that of `own` is there before it has joined."""
        return [node for node in self if node.role is not Role.LOST and (node.joined or node.name == own)]

    def assign_roles(self, training: Collection[str]) -> None:
        """Nodes in `training` are active, all others that live are spares."""
        for node in self:
            if node.role is not Role.LOST:
                node.role = Role.ACTIVE if node.name in training else Role.SPARE

    def waiting(self) -> list[Node]:
        """Nodes whose agents have not joined yet."""
        return [node for node in self if not node.joined and node.role is not Role.LOST]

    def silent(self, now: float, timeout: float) -> list[Node]:
        """Live nodes that have not been heard of for longer than `timeout`."""
        return [
            n for n in self if n.role is not Role.LOST and n.heard is not None and now - n.heard > timeout
        ]

    def shift(self, seconds: float) -> None:
        """Give everybody more time: we ourselves did not listen."""
        for node in self:
            if node.heard is not None:
                node.heard += seconds

    def snapshot(self) -> tuple[Member, ...]:
        return tuple(Member(n.name, n.address, n.role, n.agent_pid, n.slots) for n in self)


def silence(node: Node, now: float) -> Evidence:
    """The evidence that a node is lost because nothing was heard of it until `now`."""
    silent = now - (node.heard or now)
    detail = f"no heartbeat for {silent:.2f} s"
    return Evidence(LOST_CONNECTION, Method.NODE_HEALTH, node.name, None, detail, time.time() - silent)

"""Which nodes are lost, and what that means at once: out of the membership, out of the network."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from unicron_hpc.config import RecoverySettings
from unicron_hpc.report.journal import Journal
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.members import Members, silence
from unicron_hpc.supervisor.messages import Role
from unicron_hpc.supervisor.probes import Probes
from unicron_hpc.supervisor.quorum import Quorum, Right

log = logging.getLogger(__name__)


class Losses:
    """Watches for nodes that have gone silent.

    Parameters
    ----------
    node
        The coordinator's own node, which is never silent to itself.
    members, quorum, journal
        The coordinator's.
    recovery
        Time-outs.
    forget
        Drops the connection to a node.
    """

    def __init__(
        self,
        *,
        node: str,
        members: Members,
        quorum: Quorum,
        recovery: RecoverySettings,
        journal: Journal,
        forget: Callable[[str], None],
    ) -> None:
        self._node = node
        self._members = members
        self._quorum = quorum
        self._recovery = recovery
        self._journal = journal
        self._forget = forget
        self._probes = Probes(recovery.node_timeout)

    def look(self, now: float, *, deciding: bool) -> tuple[Right, dict[str, Evidence]]:
        """Who is lost, and whether those that are left may decide so.

        Parameters
        ----------
        now
            Monotonic time.
        deciding
            Whether training has begun. Before, nothing has been decided that another side could decide
            differently.

        Returns
        -------
        tuple
            The right to go on, and evidence for every node to be taken out now.
        """
        silent = {
            node.name: node
            for node in self._members.silent(now, 0.0)
            if node.name != self._node and self._probes.look(node.name, node.address, node.heard or now, now)
        }
        evidence = {name: silence(node, now) for name, node in silent.items()}
        if not deciding:
            return Right.GO_ON, evidence
        here = {node.name for node in self._members.alive()}
        right = self._quorum.judge(here - silent.keys(), now)
        if right is not Right.GO_ON:
            return right, {}
        # A cut network shows node by node: who is about to be silent might take the majority along.
        limit = self._recovery.node_timeout - 1.5 * self._recovery.heartbeat_interval
        nearly = {node.name for node in self._members.silent(now, limit)} - {self._node}
        return right, evidence if self._quorum.enough(here - nearly) else {}

    def take_out(self, lost: Mapping[str, Evidence], epoch: int) -> list[str]:
        """Take nodes out for good: they are journaled and cut off.

        Returns
        -------
        list of str
            Those that were not out already.
        """
        out = []
        for name, evidence in lost.items():
            node = self._members.get(name)
            if node is None or node.role is Role.LOST:
                continue
            node.role = Role.LOST
            reason = evidence.detail if evidence.rank is None else evidence.brief
            self._journal.write("agent_lost", epoch, node=name, pid=node.agent_pid, reason=reason)
            log.warning("node %s is lost: %s", name, reason)
            self._forget(name)
            out.append(name)
        return out

    def close(self) -> None:
        """Look no more."""
        self._probes.close()

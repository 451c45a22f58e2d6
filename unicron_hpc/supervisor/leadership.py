"""Whom an agent follows, how long it has not heard of him, and what it does about that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from unicron_hpc.config import RecoverySettings
from unicron_hpc.errors import UnicronError
from unicron_hpc.supervisor.election import Ballot, Verdict, patience, verdict
from unicron_hpc.supervisor.messages import Body, JobSnapshot, Role, Vote, VoteRequest
from unicron_hpc.supervisor.probes import Probes

log = logging.getLogger(__name__)

#: Silence of the coordinator, in node time-outs, after which ranks stop computing.
MINORITY_AFTER = 3


class Leadership:
    """One agent's view of who coordinates, its votes, and its own candidature.

    Parameters
    ----------
    node
        This agent's node.
    nodes
        The allocation's nodes; the first one coordinates at the start.
    recovery
        Time-outs.
    send
        Sends a message to a node's agent in a term.
    look_up
        Learns the addresses of agents that were never heard of.
    cut_all
        Has every rank of this node stop computing.
    witness
        Asks slurmctld whether it has lost all of these nodes (blocks; used in a thread).
    elected
        Called with the predecessor when this agent has won.
    probes
        Asks whether the silent coordinator's machine answers.
    clock
        Seconds of a monotonic clock.

    Attributes
    ----------
    leader, term
        Who coordinates, and in which term.
    heard
        When it was last heard of.
    snapshot
        The newest of the coordinator's decisions; None before the first.
    """

    def __init__(
        self,
        node: str,
        nodes: Sequence[str],
        recovery: RecoverySettings,
        *,
        send: Callable[[str, int, Body], object],
        look_up: Callable[[], None],
        cut_all: Callable[[], None],
        witness: Callable[[Sequence[str]], bool],
        elected: Callable[[str], None],
        probes: Probes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._nodes = tuple(nodes)
        self._recovery = recovery
        self._send = send
        self._look_up = look_up
        self._cut_all = cut_all
        self._witness = witness
        self._elected = elected
        self._probes = probes
        self._clock = clock
        self._ballot = Ballot(node)
        self._standing_since: float | None = None
        self._idle = False
        self._excused = 0.0
        self.leader = self._nodes[0]
        self.term = self._ballot.term
        self.heard = clock()
        self.snapshot: JobSnapshot | None = None

    @property
    def ours(self) -> bool:
        """Whether this agent coordinates."""
        return self.leader == self._node

    @property
    def epoch(self) -> int:
        """The newest epoch that the coordinator has told of."""
        return self.snapshot.epoch if self.snapshot else 0

    def spoke(self) -> None:
        """The coordinator has given an order."""
        self.heard = self._clock()
        self._standing_since = None
        self._idle = False
        self._excused = 0.0

    def stalled(self, seconds: float) -> None:
        """This agent itself did not run for so long: silence of others proves nothing."""
        self.heard += seconds

    def follow(self, term: int, coordinator: str) -> None:
        """Somebody was elected in a higher term."""
        self._ballot.saw(term)
        self.leader, self.term = coordinator, term

    async def watch(self) -> None:
        """Look whether the coordinator is silent; call regularly while this agent does not coordinate.

        Raises
        ------
        UnicronError
            When this node is cut off from those who decide.
        """
        recovery, now = self._recovery, self._clock()
        # At the start the coordinator may not be up yet.
        timeout = recovery.startup_timeout if self.snapshot is None else recovery.node_timeout
        silent = now - self.heard
        if self.snapshot is not None and self._probes is not None:
            address = next((m.address for m in self.snapshot.members if m.node == self.leader), "")
            if not self._probes.look(self.leader, address, self.heard, now):
                self._excused = max(0.0, silent - timeout)
                return
        if silent <= timeout:
            return
        members = self._members()
        if silent > MINORITY_AFTER * timeout and not self._idle:
            # Nobody coordinates on this side: nothing may be computed that could count.
            self._idle = True
            self._cut_all()
        if self._node not in members:
            raise UnicronError(
                f"{self._node} was taken out of the job and its coordinator is silent", where=self._node
            )
        if silent > timeout + recovery.startup_timeout:
            raise UnicronError(
                "no coordinator could be elected: this node is cut off from the majority of the job",
                where=self._node,
                hint="Nothing was written by this side. See the other nodes' logs in the run folder.",
            )
        # Who stands first does not depend on how long the coordinator was waited for.
        turn = patience(self._node, members, self.leader, 2 * recovery.heartbeat_interval)
        if silent - self._excused < timeout + turn:
            return
        if self._standing_since is None or now - self._standing_since > timeout:
            self._standing_since = now
            self._stand(members)
        elif self._votes(members) is Verdict.TIED and self._ballot.voted_for == self._node:
            await self._ask_witness(members)

    def on_vote_request(self, sender_term: int, request: VoteRequest) -> None:
        """Another agent stands for election."""
        silent = self._clock() - self.heard > self._recovery.node_timeout * 0.75
        granted = not self.ours and self._ballot.grant(
            request.candidate,
            sender_term,
            candidate_epoch=request.epoch,
            own_epoch=self.epoch,
            leader_silent=silent,
        )
        log.info("vote for %s in term %d: %s", request.candidate, sender_term, granted)
        self._send(request.candidate, sender_term, Vote(granted))

    def on_vote(self, sender: str, term: int, vote: Vote) -> None:
        """A member answers to our candidature."""
        if vote.granted and self._ballot.voted_for == self._node and not self.ours:
            self._ballot.count(sender, term)
            self._win_if(self._votes(self._members()) is Verdict.WON)

    def _members(self) -> Sequence[str]:
        if self.snapshot is None:
            return self._nodes
        return [member.node for member in self.snapshot.members if member.role is not Role.LOST]

    def _votes(self, members: Sequence[str]) -> Verdict:
        return verdict(len(self._ballot.votes), len(members))

    def _stand(self, members: Sequence[str]) -> None:
        term = self._ballot.stand()
        log.warning("%s is silent; standing for election in term %d", self.leader, term)
        self._look_up()
        for member in members:
            if member not in (self._node, self.leader):
                self._send(member, term, VoteRequest(self._node, self.epoch))
        self._win_if(self._votes(members) is Verdict.WON)

    async def _ask_witness(self, members: Sequence[str]) -> None:
        """Exactly half of the members voted: the node list of slurmctld breaks the tie."""
        absent = [member for member in members if member not in self._ballot.votes]
        heard = self.heard
        down = await asyncio.to_thread(self._witness, absent)
        still = self._votes(members) is not Verdict.SHORT
        self._win_if(down and still and not self.ours and self.heard == heard)

    def _win_if(self, won: bool) -> None:
        if not won:
            return
        predecessor = self.leader
        self.leader, self.term = self._node, self._ballot.term
        log.warning("elected coordinator in term %d", self.term)
        self._elected(predecessor)

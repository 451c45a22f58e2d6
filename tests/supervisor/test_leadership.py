"""Agents whose coordinator has gone silent: who takes over, when, and who must not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence

import pytest

from tests.supervisor.events import within
from unicron_hpc.config import RecoverySettings
from unicron_hpc.errors import UnicronError
from unicron_hpc.supervisor.leadership import MINORITY_AFTER, Leadership
from unicron_hpc.supervisor.messages import Body, JobSnapshot, Member, Role, Vote, VoteRequest

#: Powers of two, so that sums are exact.
RECOVERY = RecoverySettings(node_timeout=2.0, heartbeat_interval=0.25, startup_timeout=16.0)
TICK = RECOVERY.heartbeat_interval / 2


class Agents:
    """The agents of n1 (which coordinates and is silent), n2, ...; only `reachable` ones hear each other."""

    def __init__(self, count: int, reachable: Collection[str] | None = None, witness: bool = False) -> None:
        self.now = 100.0
        self.nodes = [f"n{number + 1}" for number in range(count)]
        self.reachable = set(self.nodes[1:] if reachable is None else reachable)
        self.witness = witness
        self.asked: list[tuple[Sequence[str], bool]] = []
        self.elected: list[tuple[str, str, int]] = []
        self.stood: set[str] = set()
        self.cut: list[str] = []
        self._post: deque[tuple[str, str, int, Body]] = deque()
        self.all = {node: self._agent(node) for node in self.nodes if node in self.reachable}

    def _agent(self, node: str) -> Leadership:
        def elected(predecessor: str) -> None:
            self.elected.append((node, predecessor, agent.term))

        def witness(absent: Sequence[str]) -> bool:
            self.asked.append((absent, threading.current_thread() is threading.main_thread()))
            return self.witness

        agent = Leadership(
            node,
            self.nodes,
            RECOVERY,
            send=lambda to, term, body: self._post.append((node, to, term, body)),
            look_up=lambda: None,
            cut_all=lambda: self.cut.append(node),
            witness=witness,
            elected=elected,
            clock=lambda: self.now,
        )
        agent.snapshot = self.snapshot()
        return agent

    def snapshot(self, epoch: int = 1, lost: Collection[str] = ()) -> JobSnapshot:
        roles = {node: Role.LOST if node in lost else Role.ACTIVE for node in self.nodes}
        members = tuple(Member(node, f"tcp://{node}:1", role, 5, 1) for node, role in roles.items())
        return JobSnapshot("n1", epoch, members, (), 0, 0.0)

    async def run(self, seconds: float, deaf: Collection[str] = ()) -> None:
        """Let time pass; nodes in `deaf` hear of the coordinator all the time."""
        until = self.now + seconds
        while self.now < until:
            self.now += TICK
            for node, agent in self.all.items():
                if node in deaf:
                    agent.spoke()
                if not agent.ours:
                    await agent.watch()
            while self._post:
                sender, to, term, body = self._post.popleft()
                if to not in self.all:
                    continue
                if isinstance(body, VoteRequest):
                    self.stood.add(sender)
                    self.all[to].on_vote_request(term, body)
                elif isinstance(body, Vote):
                    self.all[to].on_vote(sender, term, body)
            for winner, _, term in self.elected:
                for agent in self.all.values():
                    if agent.term < term:
                        agent.follow(term, winner)


def test_the_first_of_the_others_takes_over_after_the_node_timeout() -> None:
    async def work() -> None:
        agents = Agents(4)
        await agents.run(RECOVERY.node_timeout)
        assert agents.elected == []
        await agents.run(3 * TICK)
        assert agents.elected == [("n2", "n1", 2)]
        assert {agent.leader for agent in agents.all.values()} == {"n2"}
        assert [agent.ours for agent in agents.all.values()] == [True, False, False]

    within(work())


def test_at_the_start_the_coordinator_has_time_to_come_up() -> None:
    async def work() -> None:
        agents = Agents(3)
        for agent in agents.all.values():
            agent.snapshot = None
        await agents.run(RECOVERY.startup_timeout)
        assert agents.elected == []
        await agents.run(3 * TICK)
        assert [winner for winner, _, _ in agents.elected] == ["n2"]

    within(work())


def test_who_was_stopped_himself_does_not_take_the_others_for_silent() -> None:
    async def work() -> None:
        agents = Agents(3)
        agents.now += 10.0
        for agent in agents.all.values():
            agent.stalled(10.0)
        await agents.run(RECOVERY.node_timeout)
        assert agents.stood == set()

    within(work())


def test_one_deaf_node_unseats_nobody() -> None:
    async def work() -> None:
        agents = Agents(5)
        await agents.run(4 * RECOVERY.node_timeout, deaf={"n3", "n4", "n5"})
        assert agents.elected == []

    within(work())


def test_who_knows_of_a_newer_epoch_is_elected_rather() -> None:
    async def work() -> None:
        agents = Agents(3)
        agents.all["n3"].snapshot = agents.snapshot(epoch=2)
        await agents.run(3 * RECOVERY.node_timeout)
        assert [winner for winner, _, _ in agents.elected] == ["n3"]

    within(work())


@pytest.mark.parametrize("down", [True, False])
def test_half_of_the_members_need_slurms_word(down: bool) -> None:
    async def work() -> None:
        agents = Agents(4, {"n3", "n4"}, witness=down)
        await agents.run(RECOVERY.node_timeout + 1.0)
        assert agents.asked[0] == (["n1", "n2"], False)  # slurmctld may take long: not in the loop's thread
        assert [winner for winner, _, _ in agents.elected] == ["n3"] * down

    within(work())


def test_a_coordinator_that_speaks_while_slurm_is_asked_stays() -> None:
    async def work() -> None:
        agents = Agents(2)
        agent = agents.all["n2"]

        def witness(absent: Sequence[str]) -> bool:
            agent.spoke()
            return True

        agent._witness = witness
        await agents.run(RECOVERY.node_timeout + 3 * TICK)
        assert not agent.ours

    within(work())


def test_a_minority_stops_its_ranks_once_and_ends_with_an_error() -> None:
    async def work() -> None:
        agents = Agents(5, {"n4", "n5"})
        await agents.run(MINORITY_AFTER * RECOVERY.node_timeout)
        assert agents.cut == []
        await agents.run(RECOVERY.node_timeout)
        assert agents.cut == ["n4", "n5"]
        with pytest.raises(UnicronError, match="cut off from the majority"):
            await agents.run(RECOVERY.startup_timeout)
        assert agents.elected == []

    within(work())


def test_who_was_taken_out_does_not_stand() -> None:
    async def work() -> None:
        agents = Agents(3, {"n3"})
        agents.all["n3"].snapshot = agents.snapshot(lost={"n3"})
        with pytest.raises(UnicronError, match="taken out of the job"):
            await agents.run(RECOVERY.node_timeout + 2 * TICK)

    within(work())


def test_members_that_are_lost_do_not_count() -> None:
    async def work() -> None:
        agents = Agents(5, {"n4", "n5"})
        for agent in agents.all.values():
            agent.snapshot = agents.snapshot(lost={"n2", "n3"})
        await agents.run(RECOVERY.node_timeout + 1.0)
        assert [winner for winner, _, _ in agents.elected] == ["n4"]  # two of three
        assert agents.asked == []

    within(work())

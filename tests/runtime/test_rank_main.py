"""What a rank answers while it waits for an order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.runtime.channel import AgentGone
from unicron_hpc.runtime.orders import Holdings, Phase, Rebuild
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.rank_main import Rank
from unicron_hpc.supervisor.rank_messages import Cut, RankFault, RankHeld, RebuildOrder, ToRank

pytestmark = pytest.mark.ranks

HELD = Holdings(7, Phase.IDLE, 0, (), ())
ALONE = Layout(1, 1, 1, (Replica((Stage(0, 0, (0,)),), 0, 1),), (Seat("n1", 0),))
PATIENCE = 10.0


class Agent:
    """The agent's end of the channel."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[ToRank | None] = queue.SimpleQueue()
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive(self) -> ToRank:
        order = self.orders.get()
        if order is None:
            raise AgentGone
        return order

    def send(self, said: Any) -> None:
        self.said.put(said)


class Engine:
    """Holds state and can build nothing."""

    def cut(self, before: int | None = None) -> None:
        pass

    def holdings(self) -> Holdings:
        return HELD

    def rebuild(self, order: Rebuild, store: object) -> None:
        raise RuntimeError(f"epoch {order.epoch} cannot be built")


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    rank = Rank(made, Engine(), None, 10, PhaseMarks())  # type: ignore[arg-type]
    threading.Thread(target=rank.work, daemon=True).start()
    taking = threading.Thread(target=take_all, args=(rank, made), daemon=True)
    taking.start()
    yield made
    made.orders.put(None)
    taking.join(PATIENCE)


def take_all(rank: Rank, agent: Agent) -> None:
    """`Rank.listen` without the end of the process."""
    while (order := agent.orders.get()) is not None:
        rank._take(order)


def test_what_it_holds_is_told_each_time_it_is_asked_since_an_answer_may_be_lost(agent: Agent) -> None:
    for _ in range(2):
        agent.orders.put(Cut(3))
        assert agent.said.get(timeout=PATIENCE) == RankHeld(3, HELD)


def test_an_order_is_obeyed_although_it_was_asked_twice_before(agent: Agent) -> None:
    for order in (Cut(3), Cut(3), RebuildOrder(Rebuild(3, 0, ALONE, 7))):
        agent.orders.put(order)
    said = [agent.said.get(timeout=PATIENCE)]
    while isinstance(said[-1], RankHeld):
        said.append(agent.said.get(timeout=PATIENCE))
    assert isinstance(said[-1], RankFault)
    assert said[-1].epoch == 3

"""Signals that ask a job to end: how much time each leaves, and what a second one means."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.supervisor.events import within
from unicron_hpc.supervisor.stop_wishes import FAREWELL, KILL_WAIT, StopWishes


class Agent:
    """Notes what it is asked; it coordinates or does not."""

    def __init__(self, spec: str | None = None, *, coordinates: bool = True) -> None:
        self.coordinates = coordinates
        self.asked: list[tuple[str, float]] = []
        self.ended: list[int] = []
        self.wishes = StopWishes(spec, "n1", self._ask, self.ended.append)

    def _ask(self, reason: str, seconds: float) -> bool:
        if self.coordinates:
            self.asked.append((reason, seconds))
        return self.coordinates


@pytest.mark.parametrize(
    ("spec", "number", "seconds"),
    [
        (None, signal.SIGTERM, KILL_WAIT - FAREWELL),
        (None, signal.SIGUSR1, KILL_WAIT - FAREWELL),
        ("B:USR2@300", signal.SIGUSR1, 300 - FAREWELL),
        ("USR2@300", signal.SIGUSR2, 300 - FAREWELL),
        ("USR2@300", signal.SIGTERM, KILL_WAIT - FAREWELL),
        ("B:USR2@5", signal.SIGUSR1, 0.0),
    ],
)
def test_the_time_left_is_what_slurm_gives(spec: str | None, number: signal.Signals, seconds: float) -> None:
    agent = Agent(spec)
    agent.wishes.take(number)
    assert agent.asked == [(f"{number.name} received on n1", seconds)]
    assert agent.ended == []


def test_the_same_signal_again_ends_at_once_another_one_does_not() -> None:
    agent = Agent()
    agent.wishes.take(signal.SIGTERM)
    agent.wishes.take(signal.SIGUSR1)
    assert agent.ended == []
    agent.wishes.take(signal.SIGTERM)
    assert agent.ended == [128 + signal.SIGTERM]


def test_an_agent_that_comes_to_coordinate_knows_what_was_asked() -> None:
    async def work() -> None:
        agent = Agent("B:USR2@300", coordinates=False)
        agent.wishes.pass_on()
        agent.wishes.take(signal.SIGUSR1)
        agent.coordinates = True
        assert agent.asked == []
        agent.wishes.pass_on()
        ((reason, seconds),) = agent.asked
        assert reason == "SIGUSR1 received on n1"
        assert 0 < seconds <= 300 - FAREWELL

    within(work())


def test_all_signals_of_an_end_are_listened_to() -> None:
    numbers = Agent("B:USR2@60").wishes.numbers
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2} <= numbers


def test_an_agent_that_nobody_tells_to_end_does_so_a_little_after_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        agent, due = Agent("B:USR2@300", coordinates=False), list[tuple[float, int]]()
        monkeypatch.setattr(
            asyncio.get_running_loop(), "call_later", lambda when, end, code: due.append((when, code))
        )
        agent.wishes.take(signal.SIGUSR1)
        monkeypatch.undo()
        assert due == [(300, 128 + signal.SIGUSR1)]

    within(work())

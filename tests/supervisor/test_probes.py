"""Silent agents: lost at once where nobody answers for them, waited for where their machine does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.supervisor.events import within
from unicron_hpc.supervisor.probes import PATIENCE, Probes

TIMEOUT = 2.0
HEARD = 100.0


class Watch:
    """Looks at one silent agent at chosen times, and lets each probe come to its end."""

    def __init__(self, address: str) -> None:
        self.now = HEARD
        self.address = address
        self.probes = Probes(TIMEOUT, clock=lambda: self.now)

    async def look(self, silent: float) -> bool:
        self.now = HEARD + silent
        lost = self.probes.look("n4", self.address, HEARD, self.now)
        await asyncio.gather(*self.probes._running.values())
        return lost

    async def lost_after(self, until: float) -> float | None:
        """The silence after which it is lost, looked at four times a second."""
        for step in range(1, int(until * 4) + 1):
            if await self.look(step / 4):
                return step / 4
        return None


@contextlib.contextmanager
def listening(family: socket.AddressFamily, host: str) -> Iterator[str]:
    """The socket of an agent that takes no connection itself, as if it were stopped."""
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        sock.listen(16)
        port = sock.getsockname()[1]
        yield f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"]
)
def test_one_whose_machine_takes_connections_has_more_time_but_not_for_ever(
    family: socket.AddressFamily, host: str
) -> None:
    async def work() -> None:
        with listening(family, host) as address:
            assert await Watch(address).lost_after(10) == PATIENCE * TIMEOUT + 0.25

    within(work())


def test_one_whose_process_is_gone_is_lost_after_the_usual_silence() -> None:
    async def work() -> None:
        with listening(socket.AF_INET, "127.0.0.1") as address:
            pass
        assert await Watch(address).lost_after(10) == TIMEOUT + 0.25

    within(work())


def test_one_that_dies_while_it_is_waited_for_is_not_waited_for_to_the_end() -> None:
    async def work() -> None:
        with listening(socket.AF_INET, "127.0.0.1") as address:
            watch = Watch(address)
            assert await watch.lost_after(1.25) is None
        assert await watch.lost_after(10) == 1.25 + TIMEOUT + 0.25

    within(work())


@pytest.mark.parametrize("address", ["", "tcp://n4", "ipc:///somewhere"])
def test_one_without_an_address_is_lost_after_the_usual_silence(address: str) -> None:
    async def work() -> None:
        assert await Watch(address).lost_after(10) == TIMEOUT + 0.25

    within(work())


def test_nobody_is_asked_who_is_heard_of() -> None:
    async def work() -> None:
        with listening(socket.AF_INET, "127.0.0.1") as address:
            watch = Watch(address)
            assert not await watch.look(TIMEOUT / 2)
            assert watch.probes._asked == {}

    within(work())


def test_one_is_asked_once_in_half_of_the_time_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def work() -> None:
        watch = Watch("tcp://127.0.0.1:1")

        async def connect(node: str, address: str) -> None:
            asked.append(watch.now - HEARD)

        monkeypatch.setattr(watch.probes, "_connect", connect)
        for step in range(1, 17):
            await watch.look(step / 4)

    within(work())
    assert asked == [1.25, 2.25, 3.25]


def test_one_is_not_asked_again_while_an_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        probes = Probes(TIMEOUT)
        asked: list[str] = []

        async def connect(node: str, address: str) -> None:
            asked.append(node)
            await asyncio.Event().wait()

        monkeypatch.setattr(probes, "_connect", connect)
        for silent in (1.25, 2.5, 3.75):
            probes.look("n4", "tcp://127.0.0.1:1", HEARD, HEARD + silent)
            await asyncio.sleep(0)
        assert asked == ["n4"]
        probes.close()

    within(work())

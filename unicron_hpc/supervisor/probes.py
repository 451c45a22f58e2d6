"""Whether the machine of a silent agent answers: who only lacks processor time must not count as dead."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

#: Times the usual silence that an agent may keep whose machine takes connections for it. Its process exists:
#: it may be stopped, or starved. If process or machine were gone, the kernel would refuse or not answer.
PATIENCE = 2.0


class Probes:
    """Connects to the sockets of silent agents; nothing is said, the kernel's answer is enough.

    Parameters
    ----------
    timeout
        Silence after which an agent counts as lost otherwise, in seconds: a probe takes at most half of it.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self._answered: dict[str, float] = {}
        self._asked: dict[str, float] = {}

    def look(self, node: str, address: str, heard: float, now: float) -> bool:
        """Whether an agent is lost that was last heard of at `heard`; call often while it is silent.

        Parameters
        ----------
        node, address
            Who, and where its agent listens (`tcp://host:port`).
        heard, now
            Monotonic times.
        """
        silent = now - heard
        if silent <= self._timeout / 2:
            return False
        if now - self._asked.get(node, heard) >= self._timeout / 2 and node not in self._running:
            self._asked[node] = now
            task = asyncio.create_task(self._connect(node, address), name=f"probe of {node}")
            self._running[node] = task
            task.add_done_callback(lambda _: self._running.pop(node, None))
        if silent <= self._timeout:
            return False
        answered = now - self._answered.get(node, heard) <= self._timeout
        return not answered or silent > PATIENCE * self._timeout

    def close(self) -> None:
        """Ask no more."""
        for task in list(self._running.values()):
            task.cancel()

    async def _connect(self, node: str, address: str) -> None:
        place = urlsplit(address)
        if place.hostname is None or place.port is None:
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._timeout / 2):
                _, writer = await asyncio.open_connection(place.hostname, place.port)
            self._answered[node] = self._clock()
            log.info("%s is silent, but its machine takes connections for its agent", node)
            writer.close()

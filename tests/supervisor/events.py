"""Running a coroutine in a test, never for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def within(work: Coroutine[Any, Any, T], seconds: float = 20.0) -> T:
    """Run to the end; longer than that is a failure."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for what another process does and nobody announces (an entry of /proc, a file)."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.005)

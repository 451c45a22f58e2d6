"""Calls that may hang in the kernel (a dead file server, a sick driver), given up after a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_time(work: Callable[[], T], seconds: float | None) -> T:
    """Run a blocking call in a thread of its own.

    A thread that never comes back is left behind: it holds up neither other calls nor the end of the process,
    as one of the event loop's own pool would.

    Parameters
    ----------
    work
        What to call.
    seconds
        How long it is waited for; None for as long as it takes, or until the waiting is cancelled.

    Raises
    ------
    TimeoutError
        When it takes longer.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)  # type: ignore[arg-type]  # T may be None itself

    def run() -> None:
        value: T | None = None
        failure: BaseException | None = None
        try:
            value = work()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, value, failure)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    threading.Thread(target=run, daemon=True, name="in time").start()
    return await asyncio.wait_for(outcome, seconds)

"""Calls that may hang."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from tests.supervisor.events import within
from unicron_hpc.supervisor.in_time import in_time


def test_a_call_gives_back_its_result_also_none() -> None:
    assert within(in_time(lambda: 7, 10.0)) == 7
    assert within(in_time(lambda: None, 10.0)) is None


def test_what_a_call_raises_is_raised() -> None:
    def fail() -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        within(in_time(fail, 10.0))


def test_a_call_that_hangs_is_left_behind_and_keeps_neither_the_loop_nor_its_end() -> None:
    read, write = os.pipe()

    async def work() -> list[object]:
        disturbed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: disturbed.append(context))
        with pytest.raises(TimeoutError):
            await in_time(lambda: os.read(read, 1), 0.05)
        os.write(write, b"x")  # it comes back after all: nobody waits any more
        while any(thread.name == "in time" for thread in threading.enumerate()):
            await asyncio.sleep(0)
        assert await in_time(lambda: 1, 10.0) == 1
        return disturbed

    try:
        assert within(work()) == []
    finally:
        os.close(read)
        os.close(write)


def test_more_hanging_calls_than_any_pool_has_threads_hold_up_no_other() -> None:
    read, write = os.pipe()

    async def work() -> int:
        hanging = [asyncio.create_task(in_time(lambda: os.read(read, 1), 60.0)) for _ in range(40)]
        await asyncio.sleep(0)
        value = await in_time(lambda: 1, 10.0)
        for task in hanging:
            task.cancel()
        return value

    try:
        assert within(work()) == 1
    finally:
        os.write(write, b"x" * 40)
        os.close(write)

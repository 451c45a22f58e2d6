"""Waiting for events of a cluster, with a bound that says what was seen last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(probe: Callable[[], T], wanted: Callable[[T], bool], *, seconds: float = 60.0) -> T:
    """Return the first answer of `probe` that is `wanted`; fail with the last one when the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        seen = probe()
        if wanted(seen):
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s; last seen: {seen!r}")
        time.sleep(0.1)

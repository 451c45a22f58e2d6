"""Importing torch and Megatron-core without the compiler, where it would not be used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch


def _as_it_is(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Stands in for `torch.compile`, with and without arguments."""
    return function if function is not None else (lambda decorated: decorated)


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """While Megatron-core is imported, leave its fused functions as they are written, on CPU builds of torch.

    Megatron decorates them with `torch.compile`, which imports the whole compiler: 1.6 s of 4 s of CPU time
    on every node at the start of a job (torch 2.13, megatron-core 0.16.1), for functions that the CPU
    settings switch off.
    """
    if torch.version.cuda is not None:
        yield
        return
    real = torch.compile
    torch.compile = cast(Any, _as_it_is)
    try:
        yield
    finally:
        torch.compile = real

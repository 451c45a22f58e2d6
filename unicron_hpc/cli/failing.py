"""How commands end with an error: one line or more on stderr, the error's exit code, no traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from unicron_hpc.errors import UnicronError

P = ParamSpec("P")
R = TypeVar("R")


def ends_with_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command show any `UnicronError` on stderr and exit with its code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UnicronError as error:
            click.echo(str(error), err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            # Whoever read our output is gone; Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)

    return wrapped

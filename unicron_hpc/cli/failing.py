"""How commands end with an error: one line or more on stderr, the error's exit code, no traceback."""

from __future__ import annotations

import errno
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
        except KeyboardInterrupt:
            sys.exit(130)
        except BrokenPipeError:
            _forget_output()
            sys.exit(141)
        except OSError as error:
            # Another user's folder, a full disk: the system's words say it, a traceback adds nothing.
            click.echo(f"{error.filename or 'input or output'}: {error.strerror or error}", err=True)
            if error.errno in (errno.EACCES, errno.EPERM):
                click.echo("  ask its owner: a run folder is its user's alone", err=True)
            _forget_output()
            sys.exit(1)

    return wrapped


def _forget_output() -> None:
    """Drop what stdout did not take; Python would complain once more when it flushes at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

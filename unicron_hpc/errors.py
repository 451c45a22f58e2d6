"""The exception tree: every error a user can meet says what, where and what to do next."""

from __future__ import annotations


class UnicronError(Exception):
    """Base of every error of this package.

    Parameters
    ----------
    message
        What happened, in one sentence.
    where
        File and line, command, node or rank; empty where the message already says it.
    hint
        What to do next; empty where nothing sensible can be said.
    """

    #: Exit code of a command that ends with this error.
    exit_code = 1

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  {self.hint}" if self.hint else head


class ConfigError(UnicronError):
    """The user's input is wrong; nothing was submitted."""

    exit_code = 2


class SlurmError(UnicronError):
    """Slurm refused or did not answer; its own words are in the message."""


class PlanError(UnicronError):
    """No layout satisfies the demand; the message names the binding constraint."""

    exit_code = 2

"""The one exception of the quickstart: what happened, where, and what to do next."""

from __future__ import annotations


class QuickstartError(Exception):
    """The quickstart cannot go on.

    Parameters
    ----------
    message
        What happened, in one sentence.
    where
        Step, command or file.
    hint
        What to do next; lines of text.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return "\n  ".join([head, *self.hint.splitlines()])

"""The one exception of the test clusters: what happened, where, and what to do next."""

from __future__ import annotations


class ClusterError(Exception):
    """A test cluster could not do what was asked.

    Parameters
    ----------
    message
        What happened, in one sentence, with the daemon's or command's own words where there are any.
    where
        Node, daemon, command or file; empty where the message already says it.
    hint
        What to do next; empty where nothing sensible can be said.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  {self.hint}" if self.hint else head

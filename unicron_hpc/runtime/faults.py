"""What can go wrong inside a rank."""

from __future__ import annotations

from unicron_hpc.errors import UnicronError


class GroupsCut(UnicronError):
    """This rank's groups were cut on order; it keeps its state and waits for the next epoch."""


class PeerLost(GroupsCut):
    """A connection to another rank broke or timed out before an order to cut came."""


class WorkLeftBehind(GroupsCut):
    """A communication call did not end with the cut; its thread was left behind."""


class StateMismatch(UnicronError):
    """State that arrived, or that is here, is not what the order says it is."""


class ProgramFault(UnicronError):
    """The training itself went wrong (loss or gradient not finite): a restart would not help."""

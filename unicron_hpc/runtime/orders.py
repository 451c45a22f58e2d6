"""What the supervisor orders a rank to do and what the rank answers; imports no torch."""

from __future__ import annotations

import enum

import msgspec

from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.movement import HeldUnit, Move
from unicron_hpc.planner.reuse import Reuse, Unfinished
from unicron_hpc.planner.units import UnitKey


class Phase(enum.Enum):
    """How far a rank is with the iteration after the last one that it committed."""

    #: No iteration is under way.
    IDLE = "idle"
    #: Under way; its gradients are not complete. What they are sums of is told in `Holdings.unfinished`.
    COMPUTING = "computing"
    #: This rank's gradient sums are complete and kept: the update can be applied once its norm is known.
    REDUCED = "reduced"


class Committed(msgspec.Struct, frozen=True):
    """An iteration whose update counts.

    Attributes
    ----------
    iteration
        Number of the update, from 1.
    loss
        Mean loss over the tokens of the global batch.
    grad_norm
        Norm of the gradient of `loss`, before clipping.
    lr
        Learning rate of this update.
    tokens
        Tokens of the global batch that count in the loss.
    seconds
        Duration on this rank; 0 when the update was applied from another rank's report.
    """

    iteration: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float


class PendingCommit(msgspec.Struct, frozen=True):
    """An iteration that some rank has committed and others must apply before they go on.

    Attributes
    ----------
    iteration, loss, grad_norm, tokens
        As in the `Committed` of the rank that has it.
    """

    iteration: int
    loss: float
    grad_norm: float
    tokens: int

    @classmethod
    def of(cls, committed: Committed) -> PendingCommit:
        """What the other ranks need to know of `committed`."""
        return cls(committed.iteration, committed.loss, committed.grad_norm, committed.tokens)


class Exchange(msgspec.Struct, frozen=True):
    """A timed exchange with one other rank.

    Attributes
    ----------
    peer, seconds
        Its number, and seconds for one message each way at once.
    intact
        Whether all that came was as it had been sent.
    """

    peer: int
    seconds: float
    intact: bool = True


class SelfTest(msgspec.Struct, frozen=True):
    """How a rank did in a short test between two epochs.

    Attributes
    ----------
    gemm_seconds
        Fastest of a few multiplications of two matrices.
    right
        Whether their product was as it has to be.
    exchanges
        With every partner of a hypercube.
    seconds
        All of it, waiting included.
    """

    gemm_seconds: float
    right: bool
    exchanges: tuple[Exchange, ...]
    seconds: float


class Rebuild(msgspec.Struct, frozen=True):
    """The order to take a place in a new epoch.

    Attributes
    ----------
    epoch
        Number of the epoch.
    rank
        This process's rank in `layout`.
    layout
        Everybody's work.
    iteration
        Committed iterations that every unit must contain when training goes on.
    moves
        State sent between ranks, by their numbers in `layout`; every rank gets all of them.
    commit
        Ranks that stand in `Phase.REDUCED` of this iteration apply it first.
    initial
        Units that nobody holds are initialised from the seed (a new training; `iteration` is 0).
    senders
        Seats that leave the task and only send state: they are ranks `layout.world_size`, ... in this order,
        and are done once it is sent.
    checkpoint
        Folder of a checkpoint; when set, every unit is loaded from it and nothing is moved.
    self_test
        Whether ranks test themselves and their connections once the groups are built.
    reuse
        How this rank goes on with the next iteration, which had begun; None: from its start.
    """

    epoch: int
    rank: int
    layout: Layout
    iteration: int
    moves: tuple[Move, ...] = ()
    commit: PendingCommit | None = None
    initial: bool = False
    senders: tuple[Seat, ...] = ()
    checkpoint: str | None = None
    self_test: bool = False
    reuse: Reuse | None = None

    @property
    def only_sends(self) -> bool:
        """Whether this rank is one of the senders."""
        return self.rank >= self.layout.world_size


class RebuildReport(msgspec.Struct, frozen=True):
    """What taking the new place cost.

    Attributes
    ----------
    epoch
        Epoch of the order.
    commit_seconds, groups_seconds, chunk_seconds, state_seconds, warm_seconds
        Time to apply a pending update, build process groups, build the model chunk (0 when it was kept),
        bring the state here, and use every group once.
    chunk_kept
        Whether the model chunk of the epoch before serves on.
    bytes_by_source
        State by where it came from: `local` (own memory), `peer`, `disk`, `seed` (freshly initialised).
    committed
        The pending update that was applied first, if any.
    self_test
        What the order's test showed.
    """

    epoch: int
    commit_seconds: float
    groups_seconds: float
    chunk_seconds: float
    state_seconds: float
    warm_seconds: float
    chunk_kept: bool
    bytes_by_source: dict[str, int]
    committed: Committed | None = None
    self_test: SelfTest | None = None


class Holdings(msgspec.Struct, frozen=True):
    """What a process holds while it waits for an order.

    Attributes
    ----------
    iteration
        Iterations that this rank has committed.
    phase, pending_iteration
        How far it is with the next one, and that one's number (0 in `Phase.IDLE`).
    units
        All complete state in its memory, needed now or not; each with its own iteration.
    recent
        The last updates that it committed, oldest first.
    pending_units
        In `Phase.REDUCED`: the (unit, tensor index) that the pending update would bring up to date.
    unfinished
        Gradients of the next iteration, which broke off.
    """

    iteration: int
    phase: Phase
    pending_iteration: int
    units: tuple[HeldUnit, ...]
    recent: tuple[Committed, ...]
    pending_units: tuple[UnitKey, ...] = ()
    unfinished: Unfinished | None = None

"""What an agent and its ranks say to each other over their Unix socket, and how it is framed."""

from __future__ import annotations

import struct

import msgspec

from unicron_hpc.planner.layout import Seat
from unicron_hpc.runtime.manifest import WrittenFile
from unicron_hpc.runtime.orders import Committed, Holdings, Rebuild, RebuildReport


class RankHello(msgspec.Struct, frozen=True, tag=True):
    """First message of a rank process: it is warm and waits for an order."""

    pid: int


class RankHeld(msgspec.Struct, frozen=True, tag=True):
    """The rank has stopped for `epoch` and waits; this is what it holds."""

    epoch: int
    holdings: Holdings


class RankReady(msgspec.Struct, frozen=True, tag=True):
    """The rank has its groups and its state for `epoch` and has begun to compute."""

    epoch: int
    report: RebuildReport


class RankCommitted(msgspec.Struct, frozen=True, tag=True):
    """An iteration's update counts on this rank."""

    epoch: int
    committed: Committed


class RankFault(msgspec.Struct, frozen=True, tag=True):
    """The rank met an exception; it keeps its state and waits for the next epoch.

    Attributes
    ----------
    error
        Exception class and first line of its text.
    traceback
        Whole traceback, for the log and the cause of a failed run.
    iteration, micro_batch, phase
        What it was doing.
    collective
        The calls that led into the collective that was waiting; empty if none was.
    """

    epoch: int
    error: str
    traceback: str
    iteration: int = 0
    micro_batch: int = 0
    phase: str = ""
    collective: str = ""

    @property
    def place(self) -> str:
        """What it was doing, in words."""
        if not self.phase:
            return ""
        words = f"in {self.phase} of iteration {self.iteration}, micro-batch {self.micro_batch}"
        return f"{words}, in the collective {self.collective}" if self.collective else words


class RankFinished(msgspec.Struct, frozen=True, tag=True):
    """The rank has committed the last iteration and written what it had to write."""

    epoch: int
    iteration: int


class RankSection(msgspec.Struct, frozen=True, tag=True):
    """The rank enters (or, with an empty name, leaves) a part that is slow by nature."""

    epoch: int
    name: str


class StoreRequest(msgspec.Struct, frozen=True, tag=True):
    """One operation on the epoch's key-value store.

    Attributes
    ----------
    operation
        `set`, `get` (waits until the key is there), `add`, `check` or `delete`.
    keys
        The keys; all but `get` and `check` take exactly one.
    value
        Bytes to set, or the decimal amount to add.
    """

    epoch: int
    request: int
    operation: str
    keys: tuple[str, ...]
    value: bytes = b""


class IAmHere(msgspec.Struct, frozen=True, tag=True):
    """Answer to `AreYouThere`: the rank's interpreter runs."""

    number: int


class CheckpointPart(msgspec.Struct, frozen=True, tag=True):
    """This rank's files of a checkpoint are on disk, or `error` says why not.

    With `complete`, `files` are those of the whole checkpoint, metadata included.
    """

    epoch: int
    iteration: int
    directory: str
    files: tuple[WrittenFile, ...]
    complete: bool = False
    error: str = ""


FromRank = (
    RankHello
    | RankHeld
    | RankReady
    | RankCommitted
    | RankFault
    | RankFinished
    | RankSection
    | StoreRequest
    | CheckpointPart
    | IAmHere
)


class RebuildOrder(msgspec.Struct, frozen=True, tag=True):
    """Take this place in the new epoch."""

    rebuild: Rebuild


class Cut(msgspec.Struct, frozen=True, tag=True):
    """Stop computing, report what you hold and wait for the order of `epoch`."""

    epoch: int


class StoreReply(msgspec.Struct, frozen=True, tag=True):
    """Answer to a `StoreRequest`; `error` is not empty when the epoch is over."""

    epoch: int
    request: int
    value: bytes = b""
    error: str = ""


class FinishCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """All parts (`files`) are on disk: write the checkpoint's metadata (sent to one rank).

    `epoch` is the one whose layout wrote it.
    """

    epoch: int
    iteration: int
    directory: str
    files: tuple[WrittenFile, ...]


class SaveCheckpoint(msgspec.Struct, frozen=True, tag=True):
    """Have all ranks save after one of the next iterations: the run is about to end (sent to one rank)."""


class AreYouThere(msgspec.Struct, frozen=True, tag=True):
    """The agent doubts that this rank's interpreter runs: a thread that keeps its lock stops all others."""

    number: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End this process; nothing of it is needed any more."""

    reason: str


class Inject(msgspec.Struct, frozen=True, tag=True):
    """Fail on purpose, in the way that a drill asks for; the fields are those of `messages.Drill`."""

    order: str
    name: str
    iteration: int = 0
    seconds: float = 0.0
    text: str = ""
    amount: int = 0


ToRank = RebuildOrder | Cut | StoreReply | FinishCheckpoint | SaveCheckpoint | Stop | Inject | AreYouThere


class RankAddress(msgspec.Struct, frozen=True):
    """One process in one seat: the seat's `incarnation`-th process."""

    task: str
    seat: Seat
    incarnation: int


_LENGTH = struct.Struct("!I")
#: Longest frame accepted; a layout of thousands of ranks stays far below it.
MAX_FRAME = 64 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
from_rank_decoder: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)
to_rank_decoder: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)


def frame(message: FromRank | ToRank) -> bytes:
    """One message as it goes over the socket: 4 bytes of length, then msgpack."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def frame_length(header: bytes) -> int:
    """Length of the frame behind a 4-byte header.

    Raises
    ------
    ValueError
        When it is longer than any message of ours can be.
    """
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME:
        raise ValueError(f"frame of {length} bytes is longer than the {MAX_FRAME} allowed")
    return int(length)


HEADER_BYTES = _LENGTH.size

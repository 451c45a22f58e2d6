"""What agents say to each other: typed structs in an envelope with sender and term."""

from __future__ import annotations

import enum

import msgspec

from unicron_hpc.detect.severity import Finding, Method
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.runtime.orders import Committed
from unicron_hpc.supervisor.incident import Evidence, OpenIncident
from unicron_hpc.supervisor.rank_messages import FromRank, RankAddress, ToRank
from unicron_hpc.supervisor.watch_messages import DumpStacks, StacksDumped, Vital


class Role(enum.StrEnum):
    """What a node does in the job."""

    ACTIVE = "active"  # holds at least one seat of a layout
    SPARE = "spare"  # its agent runs, its zygote is warm, no rank computes there
    LOST = "lost"  # out of the plan for good


class Member(msgspec.Struct, frozen=True):
    """One node as the coordinator knows it."""

    node: str
    address: str
    role: Role
    agent_pid: int
    slots: int


class RankState(msgspec.Struct, frozen=True):
    """A rank process as its agent knows it."""

    address: RankAddress
    pid: int
    epoch: int


# ---------------------------------------------------------------- agent -> coordinator


class Noticed(msgspec.Struct, frozen=True, tag=True):
    """What an agent found out by itself about its node or one of its ranks, from outside the process.

    Attributes
    ----------
    finding, method, detail
        What it means, how it was found, and the evidence for people.
    time
        Unix time at which it was seen.
    rank, epoch
        The process that it concerns and the epoch in which that was; None and 0 for the whole node.
    """

    finding: Finding
    method: Method
    detail: str
    time: float
    rank: RankAddress | None = None
    epoch: int = 0


class Join(msgspec.Struct, frozen=True, tag=True):
    """The agent is up (or has a new coordinator) and tells all that it knows.

    `noticed` is what the checks of its node have found before it joined.
    """

    address: str
    agent_pid: int
    slots: int
    epoch: int
    warm: bool
    ranks: tuple[RankState, ...]
    commits: tuple[tuple[str, int, Committed], ...]
    noticed: tuple[Noticed, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The agent is alive.

    Attributes
    ----------
    warm
        Its zygote has done its imports.
    beat
        Number of the last `Beat` that it has seen: a heartbeat that lay in a queue proves nothing new.
    time
        Unix time on this node; 0 when it does not tell.
    vitals
        How its ranks look from outside.
    """

    warm: bool
    beat: int
    commits: tuple[tuple[str, int, Committed], ...] = ()
    time: float = 0.0
    vitals: tuple[Vital, ...] = ()


class RankStarted(msgspec.Struct, frozen=True, tag=True):
    """A rank process runs in a seat."""

    rank: RankAddress
    pid: int


class RankExited(msgspec.Struct, frozen=True, tag=True):
    """A rank process is gone.

    Attributes
    ----------
    status
        Exit status as `subprocess` writes it: code, or minus the signal's number; None when unknown.
    tail
        Last lines that it wrote to its log.
    time
        Unix time at which the agent saw it.
    core
        It left a core dump.
    words
        The part of `tail` that is newer than its last report: only this can name the cause of its end.
    memory
        How the system says that it was killed for want of memory; empty where it does not.
    """

    rank: RankAddress
    pid: int
    status: int | None
    tail: str
    time: float
    core: bool = False
    words: str = ""
    memory: str = ""


class RankSaid(msgspec.Struct, frozen=True, tag=True):
    """A rank's message, passed on."""

    rank: RankAddress
    said: FromRank
    time: float


class DataReady(msgspec.Struct, frozen=True, tag=True):
    """The data of a task is prepared, or could not be (`error`)."""

    task: str
    error: str = ""


# ---------------------------------------------------------------- coordinator -> agent


class TaskSnapshot(msgspec.Struct, frozen=True):
    """What a successor must know of one task: also how far the budgets of its open incident are used up."""

    name: str
    epoch: int
    layout: Layout | None
    iteration: int
    finished: bool
    data_ready: bool
    nodes: tuple[str, ...] = ()
    incident: OpenIncident | None = None
    restarts: tuple[tuple[Seat, int], ...] = ()


class OwedDrain(msgspec.Struct, frozen=True):
    """A node that is to be drained for what is known of it, and of which there is no answer yet."""

    evidence: Evidence
    epoch: int


class JobSnapshot(msgspec.Struct, frozen=True, tag=True):
    """The coordinator's decisions, sent whenever they change; any agent can go on from it.

    Attributes
    ----------
    incidents, started
        How many the run has had, and the unix time of its beginning.
    failures
        When incidents ended in which this node's processes failed and no other's.
    drains
        What is still to be done about nodes that are out.
    """

    coordinator: str
    epoch: int
    members: tuple[Member, ...]
    tasks: tuple[TaskSnapshot, ...]
    incidents: int
    started: float
    failures: dict[str, tuple[float, ...]] = {}
    drains: tuple[OwedDrain, ...] = ()


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The coordinator is alive; beats are numbered."""

    number: int


class StartRank(msgspec.Struct, frozen=True, tag=True):
    """Start a process in this seat."""

    rank: RankAddress


class StopRank(msgspec.Struct, frozen=True, tag=True):
    """Kill this seat's process, if it is still this incarnation."""

    rank: RankAddress


class TellRank(msgspec.Struct, frozen=True, tag=True):
    """Pass an order on to a rank."""

    rank: RankAddress
    order: ToRank


class PrepareData(msgspec.Struct, frozen=True, tag=True):
    """Build the indexed dataset of a task on the shared file system."""

    task: str


class Finish(msgspec.Struct, frozen=True, tag=True):
    """The run is over: stop your ranks and end with this exit code."""

    exit_code: int
    reason: str


# ---------------------------------------------------------------- the job's owner -> agent


class Drill(msgspec.Struct, frozen=True, tag=True):
    """Make something fail on purpose on the agent's node; comes from `unicron drill`, in no term.

    The answer is a note in the run folder (`drill_notes`): an agent that is to be killed cannot speak.

    Attributes
    ----------
    order
        Number of the order; the same one again does nothing.
    name
        Which drill of `drill_kinds`.
    task, slot, pid
        The rank process that it is about; empty, -1 and 0 for the whole node. A process that is not there
        any more is not replaced by its successor: the drill is refused.
    iteration
        The rank's iteration in which it happens, or the first one after; 0 for at once.
    seconds
        How long it lasts, where it has an end; 0 for no end.
    text, amount
        What the kind of drill says of them.
    """

    order: str
    name: str
    task: str = ""
    slot: int = -1
    pid: int = 0
    iteration: int = 0
    seconds: float = 0.0
    text: str = ""
    amount: int = 0


# ---------------------------------------------------------------- election


class VoteRequest(msgspec.Struct, frozen=True, tag=True):
    """`candidate` wants to coordinate in the envelope's term; `epoch` is the newest it knows."""

    candidate: str
    epoch: int


class Vote(msgspec.Struct, frozen=True, tag=True):
    """Answer to a `VoteRequest` of the envelope's term."""

    granted: bool


Body = (
    Join
    | Heartbeat
    | RankStarted
    | RankExited
    | RankSaid
    | Noticed
    | StacksDumped
    | DataReady
    | JobSnapshot
    | Beat
    | StartRank
    | StopRank
    | TellRank
    | DumpStacks
    | PrepareData
    | Finish
    | Drill
    | VoteRequest
    | Vote
)


class Envelope(msgspec.Struct, frozen=True):
    """A message with who sent it and in which term."""

    sender: str
    term: int
    body: Body


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Envelope] = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """The bytes that go over the wire."""
    return _encoder.encode(envelope)


def decode(data: bytes) -> Envelope:
    """Read a message.

    Raises
    ------
    msgspec.DecodeError
        When the bytes are not one of our messages (also msgspec.ValidationError).
    """
    try:
        return _decoder.decode(data)
    except (RecursionError, UnicodeDecodeError) as error:
        # Deep nesting in a field that we do not know; the receiver shall have one error to expect.
        raise msgspec.DecodeError(str(error)) from error

"""The nodes that jobs found bad, kept beside their run folders, so that later submissions leave them out."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from unicron_hpc.slurm.node_records import NodeRecord

log = logging.getLogger(__name__)

FILE = "bad-nodes.json"
#: Seconds to wait for another job of this user that writes the list: it may have been stopped in the midst.
PATIENCE = 5.0
#: Seconds between two looks whether it has ended.
_LOOK = 0.05


class BadNode(msgspec.Struct, frozen=True):
    """A node that a job took out.

    Attributes
    ----------
    node, time
        Its name, and the unix time of the fault.
    kind, job_id
        What was wrong, and the job that met it.
    drained
        Whether Slurm had it drained for that.
    """

    node: str
    time: float
    kind: str
    job_id: str
    drained: bool = False

    @property
    def why(self) -> str:
        """What was wrong with it and who met that: `lost connection, job 12`."""
        return f"{self.kind}, job {self.job_id}"


def read(folder: Path) -> tuple[BadNode, ...]:
    """The list; empty where there is none or it cannot be read: it is advice, not a condition."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=tuple[BadNode, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s: %s", folder / FILE, error)
        return ()


def add(folder: Path, entry: BadNode) -> None:
    """Add a node, in place of what was said of it before.

    Raises
    ------
    OSError
        When it cannot be written.
    """
    with _locked(folder):
        others = [known for known in read(folder) if known.node != entry.node]
        temporary = folder / f".{FILE}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode([*others, entry]), indent=1) + b"\n")
        temporary.replace(folder / FILE)


def still_bad(
    known: Sequence[BadNode], nodes: Mapping[str, NodeRecord] | None, now: float, exclude_for: float
) -> list[BadNode]:
    """Those that a submission should leave out, the latest first.

    Parameters
    ----------
    known
        The list.
    nodes
        What Slurm says of them now; None where it does not answer.
    now, exclude_for
        Unix time, and seconds after which an entry counts no more.
    """
    bad = [
        entry
        for entry in known
        if now - entry.time < exclude_for and (nodes is None or not _serviced(entry, nodes.get(entry.node)))
    ]
    return sorted(bad, key=lambda entry: -entry.time)


def to_leave_out(bad: Sequence[BadNode], wanted: Collection[str], room: int) -> tuple[list[str], list[str]]:
    """Which bad nodes can be left out.

    Parameters
    ----------
    wanted
        Nodes that the user asks for by name.
    room
        How many nodes a submission can do without; the job would wait for ever otherwise.

    Returns
    -------
    tuple
        Those to leave out, and those that may be used all the same.
    """
    spared = [entry.node for entry in bad if entry.node not in wanted]
    return spared[: max(0, room)], [*spared[max(0, room) :], *(e.node for e in bad if e.node in wanted)]


def _serviced(entry: BadNode, node: NodeRecord | None) -> bool:
    """Whether somebody has seen to a node since."""
    if node is None:
        return True  # Slurm does not have it any more
    if not node.state.usable:
        return False
    # It was drained and is not any more; or it has been booted, or (a lost one) its slurmd started anew.
    if entry.drained or (node.booted is not None and node.booted > entry.time):
        return True
    return entry.kind == "lost connection" and node.started is not None and node.started > entry.time


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other jobs of this user from writing at the same time, where the file system can.

    Not for longer than `PATIENCE`: an entry that is lost is better than a thread that never ends.
    """
    descriptor = os.open(folder / f".{FILE}.lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(OSError):
            while not _taken(descriptor) and time.monotonic() < deadline:
                time.sleep(_LOOK)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

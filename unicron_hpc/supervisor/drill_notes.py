"""What became of each drill: one small file per order in the run folder, written where the fault is made.

It is the answer to `unicron drill`, and the only record of the true moment of the fault. Nothing that detects
faults reads it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

FOLDER = "drills"

State = Literal["armed", "injected", "ended", "refused"]


class Note(msgspec.Struct, frozen=True):
    """The state of one drill.

    Attributes
    ----------
    order, name, node
        Which drill, and where.
    state
        `armed`: it waits for its moment; `injected`: the fault has been made; `ended`: it was taken back;
        `refused`: nothing was done.
    time
        Unix time of that state; for `injected` the moment of the fault.
    detail
        What was done, or why nothing was.
    """

    order: str
    name: str
    node: str
    state: State
    time: float
    detail: str = ""


def path_of(run_folder: Path, order: str, state: State) -> Path:
    """Where a drill's note of a state lies; each state has its own, since processes race to write them."""
    return run_folder / FOLDER / f"{order}.{state}.json"


def write(
    run_folder: Path,
    order: str,
    name: str,
    node: str,
    state: State,
    detail: str = "",
    when: float | None = None,
) -> None:
    """Write a note (whole or not at all).

    Raises
    ------
    OSError
        When the run folder cannot be written to.
    """
    path = path_of(run_folder, order, state)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    note = Note(order, name, node, state, time.time() if when is None else when, detail)
    temporary = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(note))
    os.replace(temporary, path)


def read(run_folder: Path, order: str, state: State) -> Note | None:
    """The note of a state; None while there is none."""
    try:
        return msgspec.json.decode(path_of(run_folder, order, state).read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError):
        return None


def is_known(run_folder: Path, order: str) -> bool:
    """Whether an order has been taken up or refused before."""
    return any((run_folder / FOLDER).glob(f"{order}.*.json"))

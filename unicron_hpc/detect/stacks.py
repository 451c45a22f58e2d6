"""What a stack dump of `faulthandler` says: is this thread waiting for another rank?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-fA-F]{1,16})\b")
_FRAME = re.compile(r'^  File "(.{0,1000})", line (\d{1,9}) in (.{0,200})$')

#: Functions of these files exist to wait for peers.
_WAITING_FILES = (
    "distributed_c10d.py",
    "p2p_communication.py",
    "runtime/gradients.py",
    "runtime/migration.py",
    "tensor_parallel/mappings.py",
)
#: Folders of compilers that may run in the midst of a forward or backward pass.
_COMPILERS = ("/torch/_dynamo/", "/torch/_inductor/", "/triton/")
#: What a line waits for a collective with: a handle, or the collective itself.
_WAITING_LINE = re.compile(r"\.wait\(|\b(all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|barrier)\(")


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a dump."""

    file: str
    line: int
    function: str


def stack(text: str, ident: int) -> tuple[Frame, ...]:
    """Where a thread is, by the last dump in `text`, the innermost call first; empty if it does not say.

    Parameters
    ----------
    ident
        Python's id of the thread (`threading.get_ident`).
    """
    found: list[Frame] = []
    here = False
    for line in text.splitlines():
        thread = _THREAD.match(line)
        frame = _FRAME.match(line)
        if thread:
            here = int(thread[1], 16) == ident
            if here:
                found.clear()
        elif here and frame:
            found.append(Frame(frame[1], int(frame[2]), frame[3]))
    return tuple(found)


def compiles(frames: Sequence[Frame]) -> bool:
    """Whether a thread is compiling part of the model, which takes as long as it takes."""
    return any(part in frame.file for frame in frames for part in _COMPILERS)


def waits_for_peer(frame: Frame, source: str) -> bool:
    """Whether a thread at this place waits for another rank.

    Parameters
    ----------
    source
        The line of the program itself, where it can be read; else empty.
    """
    return frame.file.endswith(_WAITING_FILES) or _WAITING_LINE.search(source) is not None

"""What a stack dump of `faulthandler` says: is this thread waiting for another rank?"""

from __future__ import annotations

import re
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
#: What a line waits for a collective with: a handle, or the collective itself.
_WAITING_LINE = re.compile(r"\.wait\(|\b(all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|barrier)\(")


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a dump."""

    file: str
    line: int
    function: str


def innermost(text: str, ident: int) -> Frame | None:
    """Where a thread is, by the last dump in `text`; None if the dump does not say.

    Parameters
    ----------
    ident
        Python's id of the thread (`threading.get_ident`).
    """
    found = None
    here = False
    for line in text.splitlines():
        thread = _THREAD.match(line)
        if thread:
            here = int(thread[1], 16) == ident
        elif here:
            frame = _FRAME.match(line)
            found = Frame(frame[1], int(frame[2]), frame[3]) if frame else found
            here = False  # only the first line of the stack: most recent call first
    return found


def waits_for_peer(frame: Frame, source: str) -> bool:
    """Whether a thread at this place waits for another rank.

    Parameters
    ----------
    source
        The line of the program itself, where it can be read; else empty.
    """
    return frame.file.endswith(_WAITING_FILES) or _WAITING_LINE.search(source) is not None

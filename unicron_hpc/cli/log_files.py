"""Lines of log files: packed or not, of any size, with whatever terminals and copies left in them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from unicron_hpc.errors import UnicronError

#: How much of a line is kept: no message is longer, but a binary file may have no line ends at all.
LONGEST_LINE = 16 * 1024
_CHUNK = 1 << 20
_PACKED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))


class LogError(UnicronError):
    """A log cannot be read."""


@contextmanager
def open_log(name: str) -> Iterator[BinaryIO]:
    """Open a log for reading, unpacked; `-` is standard input.

    Raises
    ------
    LogError
        When it cannot be opened, or is damaged where it is read.
    """
    if name == "-" and sys.stdin is None:
        raise LogError("is closed", where="standard input", hint="name a file")
    try:
        with open(sys.stdin.fileno() if name == "-" else Path(name), "rb", closefd=name != "-") as file:
            begins = file.peek(6)
            unpack = next((opener for magic, opener in _PACKED if begins.startswith(magic)), None)
            if unpack is None:
                yield file
            else:
                with unpack(file) as unpacked:
                    yield cast(BinaryIO, unpacked)
    except IsADirectoryError as error:
        raise LogError("is a folder", where=name, hint=f"name its files, e.g. {name}/*.log") from error
    except FileNotFoundError as error:
        raise LogError("no such file", where=name, hint="check the path") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError, io.UnsupportedOperation) as error:
        raise LogError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}",
            where="standard input" if name == "-" else name,
            hint="check the path; a packed file may be damaged",
        ) from error


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and text of every line, without its end and cut at `LONGEST_LINE`.

    A carriage return begins a line anew, as progress bars do; such parts have the same number.
    """
    number, rest = 1, b""
    while chunk := file.read(_CHUNK):
        # What is beyond the limit is dropped here, so that a file without line ends takes no memory.
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()[:LONGEST_LINE]
        for part in parts:
            yield from _written_over(number, part)
            number += 1
    if rest:
        yield from _written_over(number, rest)


def _written_over(number: int, line: bytes) -> Iterator[tuple[int, bytes]]:
    if b"\r" not in line:
        yield number, line[:LONGEST_LINE]
        return
    for part in line.split(b"\r"):
        if part:
            yield number, part[:LONGEST_LINE]

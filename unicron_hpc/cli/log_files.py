"""Lines of log files: packed or not, of any size, with whatever terminals and copies left in them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
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
#: What is not read here: how it begins, what it is, and the command that makes text of it.
_OTHERS = (
    (re.compile(rb"\x28\xb5\x2f\xfd"), "is packed with zstd", "zstd -dc"),
    (re.compile(rb"\x04\x22\x4d\x18"), "is packed with lz4", "lz4 -dc"),
    (re.compile(rb"PK\x03\x04"), "is a zip archive", "unzip -p"),
    (
        re.compile(rb"\xff\xfe(?:[^\x00]\x00){2}|\xfe\xff(?:\x00[^\x00]){2}"),
        "is UTF-16",
        "iconv -f UTF-16 -t UTF-8",
    ),
)
#: Bytes that text does not hold, and the share of them that makes a file none.
_NO_TEXT = bytes({*range(9), *range(14, 27), 28, 29, 30, 31, 127})
_MOST_NO_TEXT = 0.1


class LogError(UnicronError):
    """A log cannot be read."""


@contextmanager
def open_log(name: str, reader: str = "unicron explain -") -> Iterator[BinaryIO]:
    """Open a log for reading, unpacked; `-` is standard input, and `reader` the command that reads that.

    Raises
    ------
    LogError
        When it cannot be opened, is of a kind that is not read here, or is damaged where it is read.
    """
    where = "standard input" if name == "-" else name
    if name == "-" and sys.stdin is None:
        raise LogError("is closed", where="standard input", hint="name a file")
    try:
        with open(sys.stdin.fileno() if name == "-" else Path(name), "rb", closefd=name != "-") as file:
            begins = file.peek(6)
            for magic, what, command in _OTHERS:
                if magic.match(begins):
                    hint = f"use: {command} {'FILE' if name == '-' else name} | {reader}"
                    raise LogError(f"{what}, which is not read here", where=where, hint=hint)
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
            where=where,
            hint="check the path; a packed file may be damaged",
        ) from error


def doubt(begins: bytes) -> str:
    """What a log's first bytes make one doubt of; empty where they look like a log's."""
    if not begins:
        return "is empty"
    others = len(begins) - len(begins.translate(None, _NO_TEXT))
    return "holds hardly any text: is it a log?" if others > _MOST_NO_TEXT * len(begins) else ""


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

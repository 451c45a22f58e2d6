"""Records of the kernel log: put together where the kernel cut them into lines, and explained."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from unicron_hpc.detect.prefixes import take_apart
from unicron_hpc.detect.rule import XID, Rule
from unicron_hpc.detect.severity import Finding
from unicron_hpc.detect.table import Table, table_in_use

# The driver prints some records with line breaks inside; the kernel makes a record of every line, and others
# come between. Only the first line names the GPU.
_OPENS = re.compile(r"NVRM: (?:The NVIDIA GPU|GPU) (?P<pci>[0-9a-f]{4,8}:[0-9a-f:.]+)\b[^:]*$", re.IGNORECASE)
_CONTINUES = re.compile(r"NVRM: +(?P<text>[a-z(].*)$")
#: Most lines of others between the first and the last of a record.
_PATIENCE = 64

_PCI = re.compile(r"\b(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)\b", re.IGNORECASE)
_PID = re.compile(
    r"\bpid[=: ]+'?(?P<pid>\d+)|[Kk]ill(?:ed)? process (?P<killed>\d+)"
    r"|\[(?P<trap>\d+)\]:? (?:segfault|trap|general)|SIGBUS to [^:]+:(?P<bus>\d+)"
    r"|\btask \S+:(?P<hung>\d+) blocked|\[[^\s\[\]]{1,64}:(?P<stuck>\d+)\]$"
)


class KernelEvent(msgspec.Struct, frozen=True):
    """What one record of the kernel log means.

    Attributes
    ----------
    finding
        The error, its severity and blame.
    text
        The record, without its head; the lines of a longer one joined by spaces.
    rule
        Name of the row of the error table.
    drain
        Whether the node should be drained for it.
    xid, pci, pid
        Xid number, PCI address and process, where the record has them.
    """

    finding: Finding
    text: str
    rule: str
    drain: bool
    xid: int | None = None
    pci: str | None = None
    pid: int | None = None


def numbers_in(text: str) -> tuple[int | None, str | None, int | None]:
    """Xid number, PCI address and process of a record, where it has them."""
    numbered = XID.search(text)
    address = numbered or _PCI.search(text)
    process = _PID.search(text)
    pid = int(next(group for group in process.groups() if group)) if process else None
    return int(numbered["xid"]) if numbered else None, address["pci"] if address else None, pid


@dataclass(slots=True)
class _Open:
    """A record whose end has not been seen."""

    parts: list[str]
    age: int = 0


@dataclass(slots=True)
class KernelLog:
    """Takes lines of a kernel log, one after the other, and says what happened.

    Lines may come from /dev/kmsg, dmesg, the journal or syslog, with their heads.

    Parameters
    ----------
    table
        The rows to go by; those of this process's job when left out.
    """

    table: Table = field(default_factory=table_in_use)
    _open: list[_Open] = field(default_factory=list)
    _recent: dict[tuple[str, int | None, str | None], int] = field(default_factory=dict)
    _count: int = 0

    def feed(self, line: str) -> list[KernelEvent]:
        """Take the next line.

        Returns
        -------
        list of KernelEvent
            What is known now and was not before; mostly nothing. The same error of the same process or
            device is told once as long as its records follow each other closely.
        """
        self._count += 1
        text = self.assemble(take_apart(line).text)
        row = self.table.find(text)
        return [] if row is None else self._event(row, text)

    def assemble(self, text: str) -> str:
        """The whole record, if a line without its head ends one that came in several; else the line."""
        for record in self._open:
            record.age += 1
        self._open = [record for record in self._open if record.age <= _PATIENCE]
        if _OPENS.match(text):
            self._open.append(_Open([text]))
        elif self._open and (more := _CONTINUES.match(text)) and not _PCI.search(text):
            return self._continue(more["text"]) or text
        return text

    def _continue(self, text: str) -> str | None:
        """Add a line to an open record; the whole record, if a row explains it now."""
        # Records of two devices may be printed at once: their first lines, then their second ones, and so on.
        fullest = max(self._open, key=lambda record: (len(record.parts), record.age))
        whole = " ".join([*fullest.parts, text])
        if self.table.find(whole) is not None:
            self._open.remove(fullest)
            return whole
        if text.startswith("("):
            min(self._open, key=lambda record: (len(record.parts), -record.age)).parts.append(text)
        return None

    def _event(self, row: Rule, text: str) -> list[KernelEvent]:
        xid, pci, pid = numbers_in(text)
        event = KernelEvent(row.finding, text, row.name, row.drains, xid, pci, pid)
        key = (f"{row.error} {xid or ''}", pid, pci)
        last = self._recent.get(key)
        self._recent[key] = self._count
        if len(self._recent) > 256:
            self._recent = {k: n for k, n in self._recent.items() if self._count - n <= _PATIENCE}
        return [] if last is not None and self._count - last <= _PATIENCE else [event]

"""A row of the error table: which texts it fits, and what they mean."""

from __future__ import annotations

import enum
import functools
import re
from typing import Literal, TypeAlias

import msgspec

from unicron_hpc.detect.severity import Blame, Finding, Severity

SeverityName: TypeAlias = Literal["SEV1", "SEV2", "SEV3", "PROGRAM", "INFO"]

#: `NVRM: Xid (PCI:0000:44:00): 79, pid=1234, name=python3, ...`; old drivers write no `PCI:`.
XID = re.compile(r"\bXid\s*\((?:PCI:)?(?P<pci>[0-9a-f:.]+)\):\s*(?P<xid>\d+)\b", re.IGNORECASE | re.ASCII)


class Scope(enum.StrEnum):
    """Where a row applies."""

    ANY = "any"
    EXCEPTION = "exception"  # only to an exception's text: its words are too common in other lines


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One row of the error table.

    Attributes
    ----------
    name
        Unique among all rows.
    error, severity, blame, collateral
        The finding (`detect.severity.Finding`).
    meaning, advice
        One sentence each: what it means, what to do next.
    source
        Where the text comes from.
    example
        A text that this row explains, and no row above it.
    pattern
        Regular expression (Python's, case ignored) that is searched in the text.
    xid
        Xid numbers of the NVIDIA driver; with a pattern, both must fit.
    vague
        The text says that something failed and not what: whoever names a cause is believed first.
    scope
        Where the row applies.
    drain
        Whether the node should be drained; by itself true for SEV1 with the blame on the node.
    """

    name: str
    error: str
    severity: SeverityName
    blame: Blame
    meaning: str
    advice: str = ""
    source: str = "site rule"
    example: str = ""
    pattern: str = ""
    xid: tuple[int, ...] = ()
    collateral: bool = False
    vague: bool = False
    scope: Scope = Scope.ANY
    drain: bool | None = None

    @property
    def finding(self) -> Finding:
        """What a text that fits means."""
        return Finding(self.error, Severity[self.severity], self.blame, self.collateral)

    @property
    def drains(self) -> bool:
        """Whether we should ask for the node to be drained."""
        if self.drain is not None:
            return self.drain
        return self.severity == "SEV1" and self.blame is Blame.NODE

    def fits(self, text: str) -> bool:
        """Whether the row's words are in the text."""
        if self.xid:
            found = XID.search(text)
            if found is None or int(found["xid"]) not in self.xid:
                return False
        return not self.pattern or compiled(self.pattern).search(text) is not None


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The expression as rows use it; compiled when it is first needed, which most never are."""
    return re.compile(pattern, re.IGNORECASE | re.ASCII)

"""The report that torchrun prints at its end: which rank it saw fail first, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FIELD = re.compile(r"\s*(?P<key>time|host|rank|exitcode)\s*: (?P<value>.*)$")
_NUMBER = re.compile(r"-?\d{1,9}")
#: Lines from the title to the last field.
_LONGEST = 10


@dataclass(slots=True)
class TorchrunReport:
    """The lines after `Root Cause (first observed failure):`.

    Attributes
    ----------
    number
        The title's line in its file.
    title
        The title as it stands there.
    """

    number: int
    title: str
    _lines: int = 0
    _fields: dict[str, str] = field(default_factory=dict)

    def feed(self, text: str) -> bool:
        """Take the next line; whether the report is over."""
        self._lines += 1
        if found := _FIELD.match(text):
            self._fields[found["key"]] = found["value"].strip()
        return "exitcode" in self._fields or self._lines >= _LONGEST

    @property
    def text(self) -> str:
        """The title with what follows it, on one line."""
        return f"{self.title} " + ", ".join(f"{key} {value}" for key, value in self._fields.items())

    @property
    def rank(self) -> int | None:
        """The rank that failed first."""
        return self._number("rank")

    @property
    def status(self) -> int | None:
        """Its exit code, or minus the signal's number."""
        return self._number("exitcode")

    @property
    def host(self) -> str:
        """Where it ran."""
        return self._fields.get("host", "")

    def _number(self, key: str) -> int | None:
        found = _NUMBER.match(self._fields.get(key, ""))
        return int(found[0]) if found else None

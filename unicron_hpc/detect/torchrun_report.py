"""The report that torchrun prints at its end: which rank it saw fail first, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from unicron_hpc.detect.tracebacks import Raised, Traceback

_FIELD = re.compile(r"\s*(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)$")
_NUMBER = re.compile(r"-?\d{1,9}")
#: Lines from the title to the last field, and of the traceback that it may hold.
_LONGEST, _LONGEST_TRACEBACK = 10, 400
#: How far the lines of the traceback are moved to the right.
_INDENT = 2


@dataclass(slots=True)
class TorchrunReport:
    """The lines after `Root Cause (first observed failure):`.

    Attributes
    ----------
    number
        The title's line in its file.
    title
        The title as it stands there.
    over
        Whether its end was seen.
    """

    number: int
    title: str
    over: bool = False
    _lines: int = 0
    _fields: dict[str, str] = field(default_factory=dict)
    _traceback: Traceback = field(default_factory=Traceback)
    _raised: list[Raised] = field(default_factory=list)

    def feed(self, text: str, number: int) -> bool:
        """Take the next line; whether it belongs to the report."""
        self._lines += 1
        inside = not text.strip() or text[:1].isspace()
        if "traceback" in self._fields:
            self.over = not inside or self._lines > _LONGEST_TRACEBACK
            if not self.over:
                self._raised += self._traceback.feed(text[_INDENT:], number)[1]
            return not self.over
        if found := _FIELD.match(text):
            key, value = found["key"], found["value"].strip()
            self._fields[key] = value
            if key == "traceback":
                self._traceback.feed(value, number)
                self.over = not self._traceback.open
            return True
        self.over = self._lines >= _LONGEST or ("exitcode" in self._fields and not inside)
        return inside

    def raised(self) -> list[Raised]:
        """The chain of exceptions that ended the rank, as far as its traceback is in the report."""
        return self._raised or self._traceback.finish()

    @property
    def text(self) -> str:
        """The title with what follows it, on one line."""
        return f"{self.title} " + ", ".join(
            f"{key} {self._fields[key]}"
            for key in ("time", "host", "rank", "exitcode")
            if key in self._fields
        )

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

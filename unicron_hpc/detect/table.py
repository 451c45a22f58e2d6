"""The error table: from a text to the row that explains it.

The rows lie in `rows/*.yaml`, one file a family, in the form in which sites write their own rules; a site's
rules come first. The order is the order of judgement: the first row that fits decides.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from importlib import resources

import msgspec

from unicron_hpc.detect.literals import required_words
from unicron_hpc.detect.rule import Rule, Scope

#: The families in the order of judgement: who names the broken part goes before who only lost a peer, and
#: words that are common in the text of any exception come last.
FAMILIES = (
    *("xid", "gpu", "launch", "slurm", "host", "storage", "servers"),
    *("mpi", "network", "files", "exits", "program"),
)

#: Longest text that is looked at, in characters.
LONGEST = 4096
#: Longest head of a line, before its message.
_LONGEST_HEAD = 512
#: How the class of an exception is called.
EXCEPTION_NAME = re.compile(
    r"(?:[A-Z]\w*(?:Error|Exception|Fault|Interrupt|Cut|Lost|Mismatch)|Exception)\b", re.ASCII
)
#: One of these is in every such name.
_NAMED = (b"Error", b"Exception", b"Fault", b"Interrupt", b"Cut", b"Lost", b"Mismatch")
#: A `^` that stands for the beginning, in no class and not escaped.
_ANCHOR = re.compile(r"(?<![\[\\])\^")
#: Shapes of lines that are remembered.
_SHAPES = 50_000

# Lines of a training repeat with other digits; rows' words have none.
_SHAPE = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ123456789", b"abcdefghijklmnopqrstuvwxyz" + b"0" * 9)


class Table:
    """Rows in the order of judgement.

    Parameters
    ----------
    rows
        Their names differ.
    """

    def __init__(self, rows: Iterable[Rule]) -> None:
        self.rows = tuple(rows)
        self._words: dict[bytes, list[int]] = {}
        self._always: list[int] = []
        for k, row in enumerate(self.rows):
            words = frozenset({"xid"}) if row.xid else required_words(row.pattern)
            for word in words:
                self._words.setdefault(word.encode(), []).append(k)
            if not words:
                self._always.append(k)
        self._exceptions = {k for k, row in enumerate(self.rows) if row.scope is Scope.EXCEPTION}
        self._anchored = {k for k, row in enumerate(self.rows) if _ANCHOR.search(row.pattern)}
        self._known: dict[bytes, tuple[int, ...]] = {}

    def with_rules(self, rules: Iterable[Rule]) -> Table:
        """This table with a site's rules before it; one with the name of a row takes the row's place."""
        rules = tuple(rules)
        names = {rule.name for rule in rules}
        return Table((*rules, *(row for row in self.rows if row.name not in names)))

    def may_fit(self, raw: bytes) -> bool:
        """Whether a line is worth a closer look; quick, and never wrong when it says no."""
        candidates = self._candidates(raw)
        if self._exceptions.issuperset(candidates) and not any(name in raw for name in _NAMED):
            return False
        text = raw.decode("utf-8", "replace")[: LONGEST + _LONGEST_HEAD]
        raised = EXCEPTION_NAME.search(text) is not None
        # What stands before the message does no harm, except where a row wants to begin with the line.
        return any(
            (raised or self.rows[k].scope is Scope.ANY) and (k in self._anchored or self.rows[k].fits(text))
            for k in candidates
        )

    def find(self, text: str, *, exception: bool = False) -> Rule | None:
        """The first row that fits.

        Parameters
        ----------
        text
            A line, several that belong together, or an exception as `Class: text`.
        exception
            It is an exception's text.
        """
        text = text[:LONGEST]
        for k in self._candidates(text.encode("utf-8", "replace")):
            row = self.rows[k]
            if (exception or row.scope is Scope.ANY) and row.fits(text):
                return row
        return None

    def _candidates(self, raw: bytes) -> tuple[int, ...]:
        shape = raw.translate(_SHAPE)
        found = self._known.get(shape)
        if found is None:
            hits = set(self._always)
            for word, rows in self._words.items():
                if word in shape:
                    hits.update(rows)
            found = tuple(sorted(hits))
            if len(shape) < 1024:
                if len(self._known) >= _SHAPES:
                    self._known.clear()
                self._known[shape] = found
        return found


class _Family(msgspec.Struct, forbid_unknown_fields=True):
    """A file of rows."""

    rules: list[Rule]


@functools.cache
def default_table() -> Table:
    """The rows that come with this package."""
    return Table(row for _, rows in families() for row in rows)


def families() -> Iterator[tuple[str, list[Rule]]]:
    """Every family's name and rows, in the order of judgement."""
    folder = resources.files("unicron_hpc.detect") / "rows"
    for family in FAMILIES:
        yield family, msgspec.yaml.decode((folder / f"{family}.yaml").read_bytes(), type=_Family).rules


# An agent's process serves one job, so there is one table in it.
_in_use: list[Table] = []


def table_in_use() -> Table:
    """The table of this process's job; without one, the rows that come with this package."""
    return _in_use[-1] if _in_use else default_table()


def use_table(table: Table | None) -> None:
    """Judge by `table` in this process from now on; by the rows of this package when None."""
    _in_use[:] = [] if table is None else [table]

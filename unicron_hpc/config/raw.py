"""YAML text as a tree that remembers where each value was written.

Scalars stay the text that the user wrote; what they mean is decided later by the type of the setting
that takes them. That removes YAML 1.1's surprises at the root: `1e-5` is a number where a number is
wanted, `72:00:00` is never a count of minutes, and `no` is false only where true or false is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from unicron_hpc.config.problems import Problem, SettingsError

#: A settings file larger than this is refused: something else was given by mistake.
MAX_BYTES = 1 << 20
#: Most values a file may expand to through aliases (`*name`).
MAX_VALUES = 100_000

_STR = "tag:yaml.org,2002:str"
_NULL_WORDS = frozenset({"", "~", "null", "Null", "NULL"})


class PlainText(str):
    """A scalar written without quotes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: a file with line and column (from 1), or a `--set`."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(slots=True)
class Scalar:
    """One value: `text` as written, or None for null."""

    text: str | None
    place: Place


@dataclass(slots=True)
class Items:
    """A list."""

    items: list[Raw]
    place: Place


@dataclass(slots=True)
class Table:
    """A mapping; `keys` says where each key was written."""

    values: dict[str, Raw]
    place: Place
    keys: dict[str, Place] = field(default_factory=dict)


Raw: TypeAlias = Scalar | Items | Table


def data_of(raw: Raw) -> Any:
    """The tree as plain lists, dicts and texts (`PlainText` where unquoted)."""
    match raw:
        case Scalar():
            return raw.text
        case Items():
            return [data_of(item) for item in raw.items]
        case Table():
            return {key: data_of(value) for key, value in raw.values.items()}


def place_of(raw: Raw, path: tuple[int | str, ...]) -> Place:
    """Where the value at `path` was written, or the nearest enclosing thing that was written."""
    place = raw.place
    for step in path:
        if isinstance(raw, Table) and isinstance(step, str) and step in raw.values:
            raw = raw.values[step]
        elif isinstance(raw, Items) and isinstance(step, int) and step < len(raw.items):
            raw = raw.items[step]
        else:
            break
        place = raw.place
    return place


def key_place_of(raw: Raw, path: tuple[int | str, ...]) -> Place:
    """Where the last key of `path` was written; like `place_of` when it is no key."""
    for step in path[:-1]:
        if isinstance(raw, Table) and isinstance(step, str) and step in raw.values:
            raw = raw.values[step]
        elif isinstance(raw, Items) and isinstance(step, int) and step < len(raw.items):
            raw = raw.items[step]
        else:
            return raw.place
    if isinstance(raw, Table) and path and path[-1] in raw.keys:
        return raw.keys[str(path[-1])]
    return place_of(raw, path[-1:])


def merged(base: Raw | None, over: Raw | None) -> Raw | None:
    """`over` laid on `base`: tables are merged key by key, anything else replaces."""
    if isinstance(base, Table) and isinstance(over, Table):
        values = dict(base.values)
        for key, value in over.values.items():
            below = values.get(key)
            values[key] = value if below is None else merged(below, value) or value
        return Table(values, over.place, base.keys | over.keys)
    return base if over is None else over


def read_text(path: Path, kind: str = "train.yaml") -> str:
    """The text of a settings file: UTF-8, with or without a byte order mark.

    Parameters
    ----------
    path
        The file.
    kind
        What it should be, for messages.

    Raises
    ------
    SettingsError
        When the file cannot be read or is not text.
    """
    where = str(path)
    try:
        if path.exists() and not path.is_file():
            raise SettingsError([Problem(where, "is not a file", f"give the path of a {kind}")])
        data = path.read_bytes()
    except FileNotFoundError:
        near = did_you_mean_file(path)
        hint = f"did you mean {near}?" if near else f"give the path of a {kind}"
        raise SettingsError([Problem(where, "no such file", hint)]) from None
    except OSError as error:
        raise SettingsError([Problem(where, f"cannot be read: {error.strerror or error}")]) from error
    if len(data) > MAX_BYTES:
        raise SettingsError([Problem(where, f"is {len(data)} bytes long, too much for settings")])
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SettingsError([Problem(f"{where}:1", "is UTF-16 text", "save the file as UTF-8")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsError(
            [Problem(f"{where}:{line}", "is not UTF-8 text", "save the file as UTF-8")]
        ) from error


def did_you_mean_file(path: Path) -> str:
    """A YAML file beside `path` with a similar name, or an empty string."""
    import difflib

    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix in {".yaml", ".yml"}]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return str(path.parent / close[0]) if close else ""


def parse(
    text: str,
    source: str,
    example: str = "name: my-run",
    start: str = "start from an example: unicron-sbatch --help names one",
) -> Table:
    """Parse the text of a whole settings file.

    Parameters
    ----------
    text
        YAML, one document, a mapping at the top.
    source
        Name of the file, for messages.
    example
        A line that such a file may have.
    start
        What to do about an empty file.

    Raises
    ------
    SettingsError
        For text that is no YAML, empty, several documents, no mapping; lists every duplicate key.
    """
    builder = _Builder(source)
    raw = builder.build(text)
    if raw is None or (isinstance(raw, Scalar) and raw.text is None):
        raise SettingsError([Problem(f"{source}:1", "the file is empty", start)])
    if not isinstance(raw, Table):
        kind = "a list" if isinstance(raw, Items) else "a single value"
        hint = f"write `key: value` lines, e.g. `{example}`"
        raise SettingsError(
            [*builder.problems, Problem(str(raw.place), f"the file holds {kind}, not settings", hint)]
        )
    if builder.problems:
        raise SettingsError(builder.problems)
    return raw


def parse_value(text: str, source: str) -> Raw:
    """Parse one value as given with `--set`; every place in it is `source`."""
    builder = _Builder(source, numbered=False)
    raw = builder.build(text)
    if builder.problems:
        raise SettingsError(builder.problems)
    return Scalar(None, Place(source)) if raw is None else raw


class _Builder:
    """Turns PyYAML's nodes into `Raw` and notes what is wrong with them."""

    def __init__(self, source: str, *, numbered: bool = True) -> None:
        self.source = source
        self.numbered = numbered
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._count = 0

    def build(self, text: str) -> Raw | None:
        try:
            # BaseLoader: its resolver leaves every scalar text.
            node = yaml.compose(text, Loader=yaml.BaseLoader)
            return None if node is None else self._convert(node)
        except yaml.MarkedYAMLError as error:
            raise SettingsError([self._syntax_problem(error, text)]) from error
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, int(error.position)) + 1
            where = f"{self.source}:{line}" if self.numbered else self.source
            message = (
                f"character {ord(str(error.character)[:1] or chr(0)):#04x} cannot be in YAML text"
                if isinstance(error.character, str)
                else f"character {error.character:#04x} cannot be in YAML text"
            )
            raise SettingsError([Problem(where, message, "is this the right file?")]) from error
        except RecursionError as error:
            raise SettingsError([Problem(self.source, "is nested too deeply")]) from error

    def _place(self, mark: Any) -> Place:
        return Place(self.source, mark.line + 1, mark.column + 1) if self.numbered else Place(self.source)

    def _syntax_problem(self, error: yaml.MarkedYAMLError, text: str) -> Problem:
        mark = error.problem_mark or error.context_mark
        where = str(self._place(mark)) if mark is not None else self.source
        message = " ".join(part for part in (error.context, error.problem) if part)
        lines = text.splitlines()
        line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
        hint = ""
        if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in message:
            hint = "indent with spaces; YAML allows no tabs there"
        elif "another document" in message:
            message, hint = "the file holds more than one document", "remove the `---` and what follows it"
        elif "mapping values are not allowed" in message:
            hint = "put text that contains `: ` in quotes, or check the indentation"
        elif "%" in line or "@" in line or "`" in line:
            hint = "put text that starts with a special character in quotes"
        return Problem(
            where, f"not valid YAML: {message}" if not message.startswith("the file") else message, hint
        )

    def _convert(self, node: yaml.Node) -> Raw:
        place = self._place(node.start_mark)
        self._count += 1
        if self._count > MAX_VALUES:
            raise SettingsError([Problem(str(place), "aliases expand to too many values")])
        if id(node) in self._open:
            raise SettingsError([Problem(str(place), "an alias refers to itself")])
        self._open.add(id(node))
        try:
            return self._convert_kind(node, place)
        finally:
            self._open.discard(id(node))

    def _convert_kind(self, node: yaml.Node, place: Place) -> Raw:
        if node.tag not in {_STR, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            self.problems.append(
                Problem(str(place), f"tag {node.tag!r} is not supported", "remove the `!...`")
            )
        if isinstance(node, yaml.ScalarNode):
            if node.style is not None:
                return Scalar(node.value, place)
            return Scalar(None if node.value in _NULL_WORDS else PlainText(node.value), place)
        if isinstance(node, yaml.SequenceNode):
            return Items([self._convert(item) for item in node.value], place)
        table = Table({}, place)
        inherited: list[Table] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(str(self._place(key_node.start_mark)), "a key must be a word"))
                continue
            if key_node.value == "<<" and key_node.style is None:
                inherited.extend(self._inherited(value_node))
                continue
            self._add(table, key_node, value_node)
        for parent in inherited:
            for key, value in parent.values.items():
                if key not in table.values:
                    table.values[key] = value
                    table.keys[key] = parent.keys[key]
        return table

    def _inherited(self, node: yaml.Node) -> Iterator[Table]:
        raw = self._convert(node)
        for part in raw.items if isinstance(raw, Items) else [raw]:
            if isinstance(part, Table):
                yield part
            else:
                self.problems.append(Problem(str(part.place), "`<<` needs a mapping"))

    def _add(self, table: Table, key_node: yaml.ScalarNode, value_node: yaml.Node) -> None:
        key, place = key_node.value, self._place(key_node.start_mark)
        if key in table.keys:
            first = table.keys[key]
            message = (
                f"duplicate key {key!r}, first given in line {first.line}"
                if first.line
                else f"duplicate key {key!r}"
            )
            self.problems.append(Problem(str(place), message, "remove one of the two"))
            return
        table.values[key] = self._convert(value_node)
        table.keys[key] = place

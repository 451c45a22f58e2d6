"""Slurm's hostlists (`n[1-3,7],login`): expanded in order, folded, and refused with the offending part.

Folding is ClusterShell's. Expansion is Slurm's own grammar: ClusterShell sorts, takes things that Slurm
refuses, refuses ranges of mixed width that Slurm takes, and knows operators (`!`, `&`, `^`, `@group`) that
Slurm does not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from ClusterShell.NodeSet import NodeSet

from unicron_hpc.errors import ConfigError

_OUTSIDE = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
#: More hosts than any machine has: a mistyped range, not a node list.
MAX_HOSTS = 1 << 17


class HostlistError(ConfigError):
    """A hostlist that Slurm would not take.

    Attributes
    ----------
    text
        The whole input.
    part
        The piece of it that is wrong.
    """

    def __init__(self, text: str, part: str, reason: str) -> None:
        self.text = text
        self.part = part
        super().__init__(
            f"{text!r} is not a list of nodes: {reason} in {part!r}",
            hint="write names and ranges like n[1-3,7],login",
        )


def expand(text: str) -> tuple[str, ...]:
    """Host names of a hostlist, in the order given; a name given twice is kept once, at its first place.

    Raises
    ------
    HostlistError
        For anything that Slurm would not expand; never a part of the list.
    """
    found: dict[str, None] = {}
    total = 0
    if not text.strip():
        return ()
    for element in _elements(text):
        total += _check(text, element)
        if total > MAX_HOSTS:
            raise HostlistError(text, element, f"more than {MAX_HOSTS} hosts")
        found.update(dict.fromkeys(_expand_element(element)))
    return tuple(found)


def fold(hosts: Iterable[str]) -> str:
    """The shortest hostlist of a set of hosts, sorted by name and number."""
    names = list(hosts)
    for name in names:
        if not name or _OUTSIDE.fullmatch(name) is None:
            raise HostlistError(",".join(names), name, "a character that no host name has")
    return str(NodeSet.fromlist(names))


def _elements(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts: list[str] = []
    start, depth = 0, 0
    for k, char in enumerate(text):
        if char == "[":
            depth += 1
            if depth > 1:
                raise HostlistError(text, text[start : k + 1], "a bracket inside brackets")
        elif char == "]":
            depth -= 1
            if depth < 0:
                raise HostlistError(text, text[start : k + 1], "a closing bracket without an opening one")
        elif char == "," and depth == 0:
            parts.append(text[start:k])
            start = k + 1
    if depth:
        raise HostlistError(text, text[start:], "an opening bracket without a closing one")
    parts.append(text[start:])
    return [part.strip() for part in parts]


def _check(text: str, element: str) -> int:
    """How many hosts `element` stands for, once it is known to be well-formed."""
    if not element:
        raise HostlistError(text, text, "an empty name")
    outside = re.sub(r"\[[^]]*\]", "", element)
    if _OUTSIDE.fullmatch(outside) is None:
        bad = next(char for char in outside if _OUTSIDE.fullmatch(char) is None)
        raise HostlistError(text, element, f"the character {bad!r}")
    if element.startswith("-"):
        raise HostlistError(text, element, "a leading dash")
    if not outside:
        raise HostlistError(text, element, "no name before the bracket")
    return _size(text, element)


def _size(text: str, element: str) -> int:
    size = 1
    for group in re.findall(r"\[([^]]*)\]", element):
        count = 0
        for part in group.split(","):
            match = _RANGE.fullmatch(part.strip())
            if match is None:
                raise HostlistError(
                    text, f"[{group}]", f"{part!r} is neither a number nor a range of numbers"
                )
            low, high = match.group(1), match.group(2) or match.group(1)
            if len(high) > 18 or len(low) > 18:
                raise HostlistError(text, f"[{group}]", "a number that is too long")
            if int(high) < int(low):
                raise HostlistError(text, f"[{group}]", f"the range {part!r} runs backwards")
            count += int(high) - int(low) + 1
        size *= count
    return size


def _expand_element(element: str) -> Iterable[str]:
    """Expand one checked element, groups from left to right, numbers in the order given.

    Slurm pads every number of a range to the width of its lower end (`hostlist.c`).
    """
    choices: list[list[str]] = []
    for k, piece in enumerate(re.split(r"\[([^]]*)\]", element)):
        if k % 2 == 0:
            choices.append([piece])
            continue
        numbers: list[str] = []
        for part in piece.split(","):
            low, _, high = part.strip().partition("-")
            numbers.extend(f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1))
        choices.append(numbers)
    return ("".join(names) for names in itertools.product(*choices))

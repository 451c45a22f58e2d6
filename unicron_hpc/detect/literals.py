"""Which words must be in a text for a regular expression to fit: a quick test before the slow one."""

from __future__ import annotations

from collections.abc import Iterator

#: Shorter runs of letters are in almost every text.
_SHORTEST = 3
_QUANTIFIERS = "?*{"
#: Escapes that stand for a class of characters, or for a place between two.
_CLASSES = frozenset("AbBdDsSwWZ")


def required_words(pattern: str) -> frozenset[str]:
    """Words of which every text that fits holds at least one.

    Parameters
    ----------
    pattern
        A regular expression that compiles.

    Returns
    -------
    frozenset of str
        In lower case, without digits; empty when nothing can be said.
    """
    words: set[str] = set()
    for branch in _branches(pattern):
        found = _words_of_branch(branch)
        if not found:
            return frozenset()
        words |= found
    return frozenset(words)


def _outline(pattern: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """Place, character, and groups open behind it, without what is escaped or inside a class."""
    depth, position = 0, start
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position += 2
            continue
        if char == "[":
            position = _end_of_class(pattern, position)
            continue
        depth += (char == "(") - (char == ")")
        yield position, char, depth
        position += 1


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern, as far as they are not inside a group."""
    branches, start = [], 0
    for position, char, depth in _outline(pattern):
        if char == "|" and depth == 0:
            branches.append(pattern[start:position])
            start = position + 1
    return [*branches, pattern[start:]]


def _words_of_branch(branch: str) -> frozenset[str]:
    """The longest run of plain characters, or the words of a group whose shortest is longer."""
    best: frozenset[str] = frozenset()
    run = ""

    def offer(words: frozenset[str]) -> None:
        nonlocal best
        shortest = min(map(len, words), default=0)
        if shortest >= _SHORTEST and shortest > min(map(len, best), default=0):
            best = words

    position = 0
    while position < len(branch):
        char, position = branch[position], position + 1
        plain = ""
        if char == "\\":
            escaped, position = branch[position : position + 1], position + 1
            plain = "" if escaped in _CLASSES or escaped.isalnum() else escaped
        elif char == "[":
            position = _end_of_class(branch, position - 1)
        elif char == "(":
            end = _end_of_group(branch, position - 1)
            if branch[end : end + 1] not in {*_QUANTIFIERS}:
                offer(_words_of_group(branch[position : end - 1]))
            position = end
        elif char == "{":
            closing = branch.find("}", position)
            position = len(branch) if closing < 0 else closing + 1
        elif char not in ".^$*+?" and char.isascii() and not char.isdigit():
            plain = char.lower()
        after = branch[position : position + 1]
        if plain and after not in {*_QUANTIFIERS}:
            run += plain
            if after == "+":
                offer(frozenset({run}))
                run = ""
        else:
            offer(frozenset({run}))
            run = ""
    offer(frozenset({run}))
    return best


def _words_of_group(inside: str) -> frozenset[str]:
    if inside.startswith("?:"):
        return required_words(inside[2:])
    if inside.startswith("?P<"):
        return required_words(inside.partition(">")[2])
    # Lookarounds take nothing from the text, flags change what letters mean.
    return frozenset() if inside.startswith("?") else required_words(inside)


def _end_of_class(pattern: str, start: int) -> int:
    """The place behind the `]` of the class that begins at `start`."""
    position = start + 1
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position + 1


def _end_of_group(pattern: str, start: int) -> int:
    """The place behind the `)` of the group that begins at `start`."""
    for position, char, depth in _outline(pattern, start):
        if char == ")" and depth == 0:
            return position + 1
    return len(pattern)

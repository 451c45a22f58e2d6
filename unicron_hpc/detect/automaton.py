"""A regular expression as places and steps between them, in the number of ways in which a search takes them.

Places are the pattern's single characters (Glushkov's construction), found in Python's own tree of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

#: Repeats of more than so many are loops; those of fewer are written out.
_WRITTEN_OUT = 4
#: Places of a pattern beyond which it is not examined.
_MOST_PLACES = 2000

# Characters are bits: ASCII, and one for all others.
ALL = (1 << 129) - 1
_OTHER = 1 << 128
_CATEGORIES = {
    sre.CATEGORY_DIGIT: "0123456789",
    sre.CATEGORY_SPACE: " \t\n\r\f\v",
    sre.CATEGORY_WORD: "".join(chr(k) for k in range(128) if chr(k).isalnum() or k == ord("_")),
}
_NOT_CATEGORIES = {
    sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT,
    sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
    sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD,
}

Edge: TypeAlias = tuple[int, int]


class TooSlow(ValueError):
    """The pattern can take very long; the text says why.

    Attributes
    ----------
    hint
        What to write instead.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


NESTED = (
    "a repeat inside a repeat can share the same text out in very many ways",
    "make each turn begin or end with a character that the rest of it cannot be, as in (?:\\w+\\.)+,"
    " or have the inner repeat give nothing back, as in (?:\\w++\\s?)+",
)
LONG = ("the pattern is too long or too deeply nested to be examined", "split it into several rules")


def automaton_of(pattern: str, flags: int = 0) -> Automaton:
    """The automaton of a search for a pattern.

    Parameters
    ----------
    pattern
        A regular expression that compiles.
    flags
        As for `re.compile`.

    Raises
    ------
    TooSlow
        When the pattern is too large, or repeats what may be empty.
    """
    automaton = Automaton()
    # A search begins anywhere.
    anywhere = automaton.place(ALL)
    automaton.repeat(anywhere, math.inf)
    try:
        tree = _parser.parse(pattern, flags)
        automaton.lines = bool(tree.state.flags & sre.SRE_FLAG_MULTILINE)
        automaton.join(anywhere, automaton.sequence(tree))
    except RecursionError:
        raise TooSlow(*LONG) from None
    return automaton


@dataclass(slots=True)
class Part:
    """A part of the pattern: where it can begin and end, and in how many ways; in how many it is empty."""

    first: Counter[int] = field(default_factory=Counter)
    last: Counter[int] = field(default_factory=Counter)
    empty: int = 1


class Automaton:
    """Places with their characters, and the steps between them with the number of ways of each."""

    def __init__(self) -> None:
        self.characters: list[int] = []
        self.most: list[float] = []  # how often a loop goes round, for places in one
        self.steps: Counter[Edge] = Counter()
        self.barred: dict[
            int, int
        ] = {}  # characters that cannot follow, since the place would have taken them
        self.lines = False  # `^` fits at the beginning of every line

    def place(self, characters: int) -> Part:
        if len(self.characters) >= _MOST_PLACES:
            raise TooSlow(*LONG)
        self.characters.append(characters)
        self.most.append(1.0)
        here = len(self.characters) - 1
        return Part(Counter({here: 1}), Counter({here: 1}), 0)

    def join(self, before: Part, after: Part) -> None:
        for p, ways in before.last.items():
            for q, more in after.first.items():
                if self.characters[q] & ~self.barred.get(p, 0):
                    self.steps[p, q] += ways * more

    def repeat(self, part: Part, most: float) -> None:
        self.join(part, part)
        for p in {*part.first, *part.last}:
            self.most[p] = max(self.most[p], most)

    def sequence(self, items: Iterable[Any]) -> Part:
        whole = Part()
        for item in items:
            whole = self._chained(whole, self.item(item))
        return whole

    def _chained(self, before: Part, after: Part) -> Part:
        self.join(before, after)
        first, last = Counter(before.first), Counter(after.last)
        for places, more, ways in ((first, after.first, before.empty), (last, before.last, after.empty)):
            places.update({place: count * ways for place, count in more.items() if ways})
        return Part(first, last, before.empty * after.empty)

    def item(self, item: tuple[Any, Any]) -> Part:
        op, argument = item
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            return self._repeated(*argument)
        if op is sre.SUBPATTERN:
            return self.sequence(argument[3])
        if op is sre.BRANCH:
            return self._either(argument[1])
        if op is sre.GROUPREF_EXISTS:
            return self._either([argument[1], argument[2] or []])
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            return self._dead_end(self.sequence(argument[1]))
        if op is sre.ATOMIC_GROUP:
            return self._once(list(argument))
        if op is sre.POSSESSIVE_REPEAT:
            return self._once([(sre.MAX_REPEAT, argument)])
        if op is sre.AT:
            # Nothing leads from elsewhere to what has to stand at the beginning.
            begins = argument is sre.AT_BEGINNING_STRING or (argument is sre.AT_BEGINNING and not self.lines)
            return Part(empty=0 if begins else 1)
        if op is sre.GROUPREF:
            part = self.place(ALL)
            return Part(part.first, part.last)
        return self.place(_characters(op, argument))

    def _either(self, branches: Iterable[Iterable[Any]]) -> Part:
        whole = Part(empty=0)
        for branch in branches:
            part = self.sequence(branch)
            whole = Part(whole.first + part.first, whole.last + part.last, whole.empty + part.empty)
        return whole

    @staticmethod
    def _dead_end(part: Part) -> Part:
        """What is looked at and not taken: nothing goes on from there."""
        return Part(part.first)

    def _once(self, items: list[Any]) -> Part:
        """What is taken in one way only, whatever comes after it."""
        part = self.sequence(items)
        greedy = items[0][1] if [op for op, _ in items] == [sre.MAX_REPEAT] else None
        if greedy is not None and greedy[1] is sre.MAXREPEAT and len(part.first) == len(greedy[2]) == 1:
            (place,) = part.first
            self.barred[place] = self.characters[place]
            return part
        taken = self.place(ALL)
        return Part(part.first + taken.first, taken.last, part.empty)

    def _repeated(self, least: int, most: Any, items: Iterable[Any]) -> Part:
        items = list(items)
        part = self.sequence(items)
        if most == 0 or not part.first:
            return Part()
        if most == 1:
            return Part(part.first, part.last, part.empty + (least == 0))
        if part.empty:
            raise TooSlow(*NESTED)
        if most is not sre.MAXREPEAT and (most <= _WRITTEN_OUT or most == least):
            return self._written_out(part, items, least, min(most, _WRITTEN_OUT))
        self.repeat(part, math.inf if most is sre.MAXREPEAT else float(most))
        return Part(part.first, part.last, int(least == 0))

    def _written_out(self, part: Part, items: list[Any], least: int, most: int) -> Part:
        """All copies one after the other; what may be left out is the end."""
        whole = Part(part.first, Counter(part.last), int(least == 0))
        before = part
        for k in range(1, most):
            copy = self.sequence(items)
            self.join(before, copy)
            whole.last = whole.last + copy.last if k >= least else Counter(copy.last)
            before = copy
        return whole


def _characters(op: Any, argument: Any) -> int:
    """The characters that fit, both cases of a letter."""
    if op is sre.LITERAL:
        return _both_cases(_bit(argument))
    if op is sre.NOT_LITERAL:
        return _without(_both_cases(_bit(argument)))
    if op is sre.ANY:
        return ALL & ~(1 << ord("\n"))
    if op is not sre.IN:
        return ALL
    found, negated = 0, False
    for kind, value in argument:
        if kind is sre.NEGATE:
            negated = True
        elif kind is sre.LITERAL:
            found |= _bit(value)
        elif kind is sre.RANGE:
            low, high = value
            found |= sum(1 << k for k in range(low, min(high, 127) + 1)) | (_OTHER if high > 127 else 0)
        elif value in _CATEGORIES:
            found |= _set(_CATEGORIES[value])
        elif value in _NOT_CATEGORIES:
            found |= _without(_set(_CATEGORIES[_NOT_CATEGORIES[value]]))
        else:
            found = ALL
    found = _both_cases(found)
    return _without(found) if negated else found


def _bit(code: int) -> int:
    return _OTHER if code > 127 else 1 << code


def _set(characters: str) -> int:
    return sum(1 << ord(char) for char in characters)


def _without(characters: int) -> int:
    # One bit stands for all that is not ASCII, so it is never all taken away.
    return (ALL & ~characters) | _OTHER


def _both_cases(characters: int) -> int:
    upper, lower = ((1 << 26) - 1) << ord("A"), ((1 << 26) - 1) << ord("a")
    return characters | (characters & upper) << 32 | (characters & lower) >> 32

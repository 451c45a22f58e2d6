"""Patterns that can take very long are refused before they meet a line; steps are counted, not timed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.automaton import TooSlow
from unicron_hpc.detect.backtracking import check
from unicron_hpc.detect.table import default_table

FLAGS = re.IGNORECASE | re.ASCII


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(a+)+$", "inside a repeat"),
        (r"(a*)*b", "inside a repeat"),
        (r"(a|a)*b", "inside a repeat"),
        (r"(?:x(?:|)|y)+b", "inside a repeat"),
        (r"(\w+\s?)+x", "inside a repeat"),
        (r"(?:ab|\w\w)*:", "inside a repeat"),
        (r"(a|b|ab)*c", "inside a repeat"),
        (r"(?:a?){30}a{30}", "inside a repeat"),
        (r"^(([a-z])+.)+[A-Z]([a-z])+$", "inside a repeat"),
        (r"(?=(a+)+b)c", "inside a repeat"),
        (r"(x+x+)+y", "inside a repeat"),
        (r"(a{1,9}){1,9}b", "inside a repeat"),
        (r"\s*\s+x", "follow each other"),
        (r"\d+\w*:", "follow each other"),
        (r".*.*x", "follow each other"),
        (r"[^:]+:\s*.*error", "follow each other"),
        (r"(.*?,){11}P", "follow each other"),
        (r"foo.*bar.*baz.*qux", "follow each other"),
        ("a?" * 20 + "a" * 20, "many optional parts"),
        ("(?:a|ab)(?:c|bc)" * 12, "many optional parts"),
        ("(?:" * 60 + "a" + ")" * 60 + "b" * 3000, "too long"),
        ("".join(f"(?:.{k:04}{k:04})*" for k in range(40)), "too long"),
    ],
)
def test_what_can_take_very_long_is_refused(pattern: str, words: str) -> None:
    re.compile(pattern, FLAGS)
    with pytest.raises(TooSlow, match=words) as caught:
        check(pattern, FLAGS)
    assert caught.value.hint


@pytest.mark.parametrize(
    "pattern",
    [
        r"leaf\d+ port \d+ flap",
        r"(?:\w+\.)+example",
        r"(\w++\s?)+x",
        r"(a++)+b",
        r"(?>a+)+b",
        r"\s*+\s*+x",
        r"error.*of.*switch",
        r"x.{0,40}y.{0,40}z",
        r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}",
        r"^\S+ .* failed",
        r"(?:^\S+|x)\S* failed.*again",
        r"(?=.*leaf)(?=.*port)flap",
        r"(a)?(?(1)b|c)+",
        r"(['\"]).{0,80}\1 failed",
        r"é+x",
    ],
)
def test_what_has_few_ways_is_taken(pattern: str) -> None:
    check(pattern, FLAGS)


@pytest.mark.parametrize(
    "row", [row for row in default_table().rows if row.pattern], ids=lambda row: row.name
)
def test_no_row_of_the_table_can_take_very_long(row: Any) -> None:
    check(row.pattern, FLAGS)


# ---------------------------------------------------------------- another matcher, which counts its steps


class TooMany(Exception):
    pass


class Counting:
    """Tries one way after the other as `re` does, and counts the characters that it looks at."""

    def __init__(self, pattern: str, text: str, most: int) -> None:
        self.tree, self.text, self.most, self.steps = _parser.parse(pattern, FLAGS), text, most, 0

    def search(self) -> bool:
        return any(True for start in range(len(self.text) + 1) for _ in self._all(list(self.tree), start))

    def _all(self, items: list[Any], at: int) -> Iterator[int]:
        if not items:
            yield at
            return
        for end in self._one(items[0], at):
            yield from self._all(items[1:], end)

    def _one(self, item: tuple[Any, Any], at: int) -> Iterator[int]:
        self.steps += 1
        if self.steps > self.most:
            raise TooMany
        op, argument = item
        if op is sre.MAX_REPEAT:
            yield from self._repeated(*argument, at, 0)
        elif op is sre.POSSESSIVE_REPEAT:
            yield from itertools.islice(self._repeated(*argument, at, 0), 1)
        elif op is sre.SUBPATTERN:
            yield from self._all(list(argument[3]), at)
        elif op is sre.BRANCH:
            for branch in argument[1]:
                yield from self._all(list(branch), at)
        elif op is sre.AT:
            if at == (0 if argument is sre.AT_BEGINNING else len(self.text)):
                yield at
        elif at < len(self.text) and self._fits(op, argument, self.text[at]):
            yield at + 1

    def _repeated(self, least: int, most: int, items: Any, at: int, count: int) -> Iterator[int]:
        if count < most:
            for end in self._all(list(items), at):
                if end > at or count < least:
                    yield from self._repeated(least, most, items, end, count + 1)
        if count >= least:
            yield at

    @staticmethod
    def _fits(op: Any, argument: Any, char: str) -> bool:
        if op is sre.LITERAL:
            return chr(argument) == char
        if op is sre.IN:
            return any((sre.LITERAL, ord(char)) == part for part in argument)
        assert op is sre.ANY
        return True


def grown(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    joined: Callable[[list[str]], str] = "".join
    return st.one_of(
        st.lists(parts, min_size=2, max_size=4).map(joined),
        st.lists(parts, min_size=2, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.tuples(parts, st.sampled_from("+*?") | st.sampled_from(["++", "{0,7}", "{2}", "{1,3}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    )


PATTERNS = st.recursive(st.sampled_from(["a", "b", "[ab]", ".", "c"]), grown, max_leaves=8)
LONG = 24
#: All short words, repeated, with an end that spoils the match.
ATTACKS = [
    (word * LONG)[:LONG] + "!"
    for length in (1, 2, 3)
    for word in map("".join, itertools.product("ab", repeat=length))
]


@settings(max_examples=150, deadline=None)
@given(PATTERNS.map(lambda pattern: pattern + "#"))
def test_what_is_taken_fails_on_any_line_in_few_steps(pattern: str) -> None:
    try:
        check(pattern, FLAGS)
    except TooSlow:
        return
    # Two loops beside the search's own beginning: at most the third power, times the pattern's own length.
    most = 6 * len(pattern) * LONG**3
    for text in ATTACKS:
        counting = Counting(pattern, text, most)
        assert not counting.search()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["a", "ab", "[ab]", "a|b", "a?b"]), st.sampled_from("+*"), st.sampled_from("+*"))
def test_a_loop_around_nothing_but_a_loop_is_always_refused(inner: str, first: str, second: str) -> None:
    with pytest.raises(TooSlow):
        check(f"(?:(?:{inner}){first}){second}#", FLAGS)
    check(f"(?:(?:{inner}){first}:)+#", FLAGS)


def test_the_counting_matcher_sees_what_it_is_for() -> None:
    with pytest.raises(TooMany):
        Counting("(a+)+#", "a" * LONG + "!", 6 * 6 * LONG**3).search()
    assert Counting("(?:a|b)*c++", "xxabcc", 10**4).search()

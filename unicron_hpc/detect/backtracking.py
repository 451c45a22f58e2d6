"""Which regular expressions can take very long: found from the pattern, before it meets a line.

Python's `re` tries one way after the other to fit a text. How many ways there are is a question about the
automaton of the pattern (Weber and Seidl, "On the degree of ambiguity of finite automata", 1991): two ways
from a place in a loop back to it on the same text double with every turn, and a text that can be shared out
between two loops multiplies them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from unicron_hpc.detect.automaton import ALL, LONG, NESTED, Automaton, TooSlow, automaton_of

#: Longest text that a row is searched in, in characters (`table.LONGEST` and the head of its line).
LONGEST_TEXT = 4608
#: Most steps of a search that fails, by estimate, on the worst text for the pattern. Two `.*` with words of
#: three letters between them are below; such a text repeats these words hundreds of times.
MOST_STEPS = 8e8
#: Steps of the examination itself.
_MOST_WORK = 300_000
#: Branches of loopless parts that come together again on the same text; each doubles the ways.
_MOST_DIAMONDS = 10


_ADJACENT = (
    "repeats that follow each other can share the same text out in very many ways",
    "put words between them that only this error has, let them fit other characters ([^:]* for .*), or limit"
    " them (.{0,80})",
)
_OPTIONAL = (
    "many optional parts or alternatives fit the same text",
    "let each begin with another character",
)


def check(pattern: str, flags: int = 0) -> None:
    """Refuse a pattern whose search could take very long.

    Parameters
    ----------
    pattern
        A regular expression that compiles.
    flags
        As for `re.compile`.

    Raises
    ------
    TooSlow
        With the reason, and what to write instead.
    """
    _Ways(automaton_of(pattern, flags)).check()


class _Ways:
    """How many ways there are through an automaton."""

    def __init__(self, automaton: Automaton) -> None:
        self._of = automaton
        self._next: dict[int, list[int]] = defaultdict(list)
        for p, q in automaton.steps:
            self._next[p].append(q)
        self._loop = _loops(range(len(automaton.characters)), self._next)
        self._work = 0

    def check(self) -> None:
        """Refuse what has too many.

        Raises
        ------
        TooSlow
            With the reason.
        """
        loops: dict[int, list[int]] = defaultdict(list)
        for place, loop in self._loop.items():
            loops[loop].append(place)
        for (p, q), ways in self._of.steps.items():
            if ways > 1 and p in self._loop and self._loop.get(p) == self._loop.get(q):
                raise TooSlow(*NESTED)
        if any(self._doubles(place) for place in self._loop):
            raise TooSlow(*NESTED)
        if self._diamonds() > _MOST_DIAMONDS:
            raise TooSlow(*_OPTIONAL)
        if self._most_steps(loops) > MOST_STEPS:
            raise TooSlow(*_ADJACENT)

    def _together(self, places: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Where several who stand at places can be after they all took the same character."""

        def extend(taken: tuple[int, ...], common: int) -> Iterator[tuple[int, ...]]:
            if len(taken) == len(places):
                self._work += 1
                if self._work > _MOST_WORK:
                    raise TooSlow(*LONG)
                yield taken
                return
            p = places[len(taken)]
            for q in self._next[p]:
                barred = 0 if p == q else self._of.barred.get(p, 0)
                if both := common & self._of.characters[q] & ~barred:
                    yield from extend((*taken, q), both)

        yield from extend((), ALL)

    def _doubles(self, place: int) -> bool:
        """Whether two different ways lead from a place back to it on the same text."""
        loop = self._loop[place]
        seen: set[tuple[int, ...]] = set()
        todo = [
            pair
            for pair in self._together((place, place))
            if pair[0] < pair[1] and all(self._loop.get(q) == loop for q in pair)
        ]
        while todo:
            pair = todo.pop()
            if pair == (place, place):
                return True
            if pair not in seen and all(self._loop.get(q) == loop for q in pair):
                seen.add(pair)
                todo += self._together(pair)
        return False

    def _diamonds(self) -> int:
        """Places without a loop from which two ways come together again on the same text."""
        found = sum(ways - 1 for (p, q), ways in self._of.steps.items() if ways > 1)
        for place in range(len(self._of.characters)):
            if place in self._loop or len(self._next[place]) < 2:
                continue
            seen: set[tuple[int, ...]] = set()
            todo = [pair for pair in self._together((place, place)) if pair[0] < pair[1]]
            while todo:
                pair = todo.pop()
                if pair[0] == pair[1]:
                    found += 1
                    break
                if pair not in seen and not any(q in self._loop for q in pair):
                    seen.add(pair)
                    todo += self._together(pair)
        return found

    def _most_steps(self, loops: dict[int, list[int]]) -> float:
        """Steps of a search that fails, on the worst text: the product over loops that share a text out."""
        links = {
            (a, b): length
            for a in loops
            for b in loops
            if a != b and (length := self._shared(loops[a], loops[b])) is not None
        }
        reaches = self._reaches(loops)
        worst = 0.0
        for count in range(1, len(loops) + 1):
            share = LONGEST_TEXT / count
            turns = {a: min(max(self._of.most[p] for p in places), share) for a, places in loops.items()}
            # Of chains with so many loops, by the loop with which they begin.
            chains = dict(turns)
            for _ in range(count - 1):
                longer: dict[int, float] = {}
                for (a, b), length in links.items():
                    for c, product in chains.items():
                        if c == b or c in reaches[b]:
                            longer[a] = max(longer.get(a, 0.0), max(1.0, turns[a] / length) * product)
                chains = longer
            worst = max(worst, max(chains.values(), default=0.0))
        return worst

    def _reaches(self, loops: dict[int, list[int]]) -> dict[int, set[int]]:
        found = {}
        for loop, places in loops.items():
            seen: set[int] = set()
            todo = list(places)
            while todo:
                p = todo.pop()
                if p not in seen:
                    seen.add(p)
                    todo += self._next[p]
            found[loop] = {self._loop[p] for p in seen if p in self._loop}
        return found

    def _shared(self, before: list[int], after: list[int]) -> int | None:
        """Length of the shortest text that fits both loops and the way between them, if there is one."""
        best: int | None = None
        for p in before:
            for q in after:
                best = _shorter(best, self._shortest(p, q))
        return best

    def _shortest(self, p: int, q: int) -> int | None:
        seen: set[tuple[int, ...]] = {(p, p, q)}
        wave: list[tuple[int, ...]] = [(p, p, q)]
        length = 0
        while wave:
            length += 1
            following: list[tuple[int, ...]] = []
            for state in wave:
                for after in self._together(state):
                    if after == (p, q, q):
                        return length
                    stays = self._loop.get(after[0]) == self._loop[p]
                    if stays and self._loop.get(after[2]) == self._loop[q] and after not in seen:
                        seen.add(after)
                        following.append(after)
            wave = following
        return None


def _shorter(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _loops(places: Iterable[int], following: dict[int, list[int]]) -> dict[int, int]:
    """The loop of each place in one: its strongly connected component (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: dict[int, int] = {}
    for root in places:
        if root in index:
            continue
        work = [(root, iter(following[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            place, rest = work[-1]
            step = next(rest, None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[place])
                if low[place] == index[place]:
                    members = []
                    while True:
                        members.append(stack.pop())
                        on_stack.discard(members[-1])
                        if members[-1] == place:
                            break
                    if len(members) > 1 or place in following[place]:
                        found.update(dict.fromkeys(members, place))
            elif step not in index:
                index[step] = low[step] = len(index)
                stack.append(step)
                on_stack.add(step)
                work.append((step, iter(following[step])))
            elif step in on_stack:
                low[place] = min(low[place], index[step])
    return found

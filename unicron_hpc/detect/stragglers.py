"""Which node is slow: each rank's own work against that of its like, with all waiting taken out.

Who waits for a slow rank spends that time in exchange or all-reduce, which does not count, so the slow one
is named and not its victims. Ranks that have the same to do are compared directly. Where a rank has no like,
the cost model says what its work should take; since that may be off, only what exceeds its margin counts, or
a change against how the rank compared with the others before. Such a change counts only as far as the rank
itself takes longer than before: when another one becomes faster, nobody has become slow.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

#: How far the cost model's shares may be off before a rank without its like is called slow.
MODEL_MARGIN = 1.5
#: How far they commonly are: a slow node that seems no slower than this may be well.
MODEL_ERROR = 1.2
#: Comparisons that make a rank's normal relation to the others.
REFERENCE = 8


@dataclass(frozen=True, slots=True)
class OwnWork:
    """What a rank does in an iteration, and how long that takes it.

    Attributes
    ----------
    node, slot
        Where it runs.
    kind
        Equal for ranks that have exactly the same to do.
    expected
        Seconds that it should take, by the cost model; only ratios matter.
    seconds
        Seconds of its own work in an iteration.
    """

    node: str
    slot: int
    kind: Hashable
    expected: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Slowness:
    """How slow a rank is.

    Attributes
    ----------
    factor
        Times as long as it should take, as far as that is certain.
    compared
        What that is compared with.
    relation
        The best guess, where what is certain is less: without a margin for the cost model's errors.
    exact
        No error of the cost model is in it: compared with its like, or with how it was when all were well.
    """

    node: str
    slot: int
    factor: float
    compared: str
    relation: float
    exact: bool

    def given(self, known: float) -> float:
        """The factor for a node that is known to be this slow: what the model agrees with needs no margin.

        Work that is shared anew leaves a slow node without its like; it is not faster for that.
        """
        return max(self.factor, min(self.relation, known))


class Comparison:
    """Compares the ranks of a task, look after look."""

    def __init__(self) -> None:
        #: How a rank compared with the others, and its time for a unit of work, look by look.
        self._references: dict[tuple[str, int, Hashable, int], list[tuple[float, float]]] = {}
        #: Nodes whose references are what they should be by a known factor: what was assumed is in them.
        self._assumed: set[str] = set()

    def look(
        self, ranks: Sequence[OwnWork], known: Mapping[str, float] | None = None
    ) -> Mapping[str, Slowness]:
        """How slow each node is: as its slowest rank.

        Parameters
        ----------
        ranks
            All ranks of one layout.
        known
            Factors of the nodes that are known to be slow.
        """
        known = known or {}
        here = {(rank.node, rank.slot, rank.kind, len(ranks)) for rank in ranks}
        self._references = {key: value for key, value in self._references.items() if key in here}
        slowest: dict[str, Slowness] = {}
        for rank in ranks:
            found = self._compare(rank, ranks, known)
            if rank.node not in slowest or found.factor > slowest[rank.node].factor:
                slowest[rank.node] = found
        return slowest

    def forget(self, node: str) -> None:
        """A node has recovered: how it compared while it was slow is no measure any more."""
        self._references = {key: value for key, value in self._references.items() if key[0] != node}
        self._assumed.discard(node)

    def _compare(self, rank: OwnWork, ranks: Sequence[OwnWork], known: Mapping[str, float]) -> Slowness:
        own = rank.seconds / rank.expected
        others = [other for other in ranks if other.node != rank.node]
        like = [other.seconds for other in others if other.kind == rank.kind]
        if like:
            usual = statistics.median(like)
            words = f"{rank.seconds:.4f} s of own work, {usual:.4f} s in the median of {len(like)} like it"
            return Slowness(rank.node, rank.slot, rank.seconds / usual, words, rank.seconds / usual, True)
        if not others:
            return Slowness(rank.node, rank.slot, 1.0, "nothing to compare with", 1.0, True)
        relation = own / statistics.median(other.seconds / other.expected for other in others)
        factor = relation / MODEL_MARGIN
        words = f"{relation:.2f} times its share by the cost model"
        before = self._references.setdefault((rank.node, rank.slot, rank.kind, len(ranks)), [])
        exact = len(before) >= REFERENCE and rank.node not in self._assumed
        if len(before) >= REFERENCE:
            usual = statistics.median(compared for compared, _ in before)
            longer = own / statistics.median(time for _, time in before)
            words += f", it should be {usual:.2f}; {longer:.2f} times its own time before"
            relation /= usual
            factor = max(factor, min(relation, longer))
        elif not known or known.get(rank.node, math.inf) <= relation * MODEL_MARGIN:
            # As it would be if all were well. How others do beside a slow node does not tell: they may be
            # faster for it, and would look slow when it recovers. Nor does a node that may have recovered.
            well = statistics.median(o.seconds / o.expected / known.get(o.node, 1.0) for o in others)
            itself = own / known.get(rank.node, 1.0)
            before.append((itself / well, itself))
            if rank.node in known:
                self._assumed.add(rank.node)
        return Slowness(rank.node, rank.slot, max(factor, 1.0), words, relation, exact)


@dataclass(slots=True)
class Persistence:
    """Whether a node is slow for good: three quarters of what was seen in a window say so.

    Parameters
    ----------
    window
        Seconds.
    """

    window: float
    slow: bool = False
    _worst: float = 1.0
    _seen: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, now: float, factor: float) -> None:
        """One comparison."""
        self._seen.append((now, factor))
        while self._seen[0][0] < now - self.window:
            self._seen.popleft()

    def lasting(self, threshold: float) -> float | None:
        """The median factor, if three quarters of a whole window were above `threshold`."""
        if not self._full():
            return None
        factors = sorted(factor for _, factor in self._seen)
        return statistics.median(factors) if factors[len(factors) // 4] >= threshold else None

    def found_slow(self, factor: float) -> None:
        """It is slow now, by this factor."""
        self.slow, self._worst = True, max(self._worst, factor)

    def over(self, threshold: float, *, exact: bool = True) -> bool:
        """Whether three quarters of a whole window were below half of what `threshold` adds.

        A comparison that is not `exact` would hold a node slow for ever by the cost model's error. Below that
        error, and below half of what the node was slower by at its worst, it counts as well: work is shared
        as if it were, which gives it its like again where it can have one, and that tells exactly.
        """
        if not self._full():
            return False
        limit = (1 + threshold) / 2
        if not exact:
            limit = max(limit, min(MODEL_ERROR, (1 + self._worst) / 2))
        factors = sorted(factor for _, factor in self._seen)
        return factors[(3 * len(factors)) // 4] < limit

    def _full(self) -> bool:
        # Looks are not exactly regular; the oldest has just been dropped.
        return len(self._seen) >= 4 and self._seen[-1][0] - self._seen[0][0] >= 0.8 * self.window

"""Which nodes had processes fail before: a place where that happens again and again is bad."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence


class NodeHistory:
    """Incidents of which one node alone was the place.

    Where processes of several nodes fail in one incident, it says nothing against any of them.
    """

    def __init__(self) -> None:
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def adopt(self, failures: Mapping[str, Sequence[float]]) -> None:
        """Take over what a predecessor had seen."""
        for node, times in failures.items():
            self._times[node] = list(times)

    def add(self, node: str, when: float) -> None:
        """An incident ended in which processes of this node failed, and of no other."""
        self._times[node].append(when)

    def count(self, node: str, since: float) -> int:
        """How many there were since a unix time."""
        return sum(when >= since for when in self._times.get(node, ()))

    def since(self, when: float) -> dict[str, tuple[float, ...]]:
        """The unix times of all that count after `when`."""
        recent = {node: tuple(t for t in times if t >= when) for node, times in self._times.items()}
        return {node: times for node, times in recent.items() if times}

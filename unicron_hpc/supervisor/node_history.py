"""Which nodes had processes fail before: a place where that happens again and again is bad."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any


class NodeHistory:
    """Incidents of which one node alone was the place.

    Where processes of several nodes fail in one incident, it says nothing against any of them.
    """

    def __init__(self) -> None:
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def learn(self, events: Iterable[Mapping[str, Any]], until: float) -> None:
        """Take over what predecessors had seen until a unix time, as they told the journal."""
        for event in events:
            node = event.get("failed_node")
            if event.get("type") == "incident_closed" and node and float(event["time"]) <= until:
                self.add(str(node), float(event["time"]))

    def add(self, node: str, when: float) -> None:
        """An incident ended in which processes of this node failed, and of no other."""
        self._times[node].append(when)

    def count(self, node: str, since: float) -> int:
        """How many there were since a unix time."""
        return sum(when >= since for when in self._times.get(node, ()))

"""From what a drill told and what the journal says to the figures of detection; pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.watching import Record

#: Iterations before a fault whose mean is the iteration time.
PACE = 20


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault that was made, and what came of it.

    Attributes
    ----------
    kind
        Which figure it belongs to.
    what
        The fault in words.
    detection
        Seconds from the fault to the journal's word of it.
    over_three
        For hangs: the same less three times the mean iteration time.
    named
        Whether the culprit and nobody else was blamed.
    incidents
        Numbers of the incidents that it accounts for.
    wrong
        What was done to the innocent, a line each.
    drained
        How many healthy nodes were taken out or were to be drained.
    """

    kind: str
    what: str
    detection: float
    over_three: float
    named: bool
    incidents: tuple[int, ...]
    wrong: tuple[str, ...] = ()
    drained: int = 0


def mean_iteration(metrics: Sequence[Record], before: float) -> float:
    """Return the mean time from commit to commit over the last iterations before a moment, in seconds."""
    times = [float(record["time"]) for record in metrics if record["time"] < before][-PACE - 1 :]
    return statistics.mean(after - first for first, after in itertools.pairwise(times))


def incidents_since(events: Sequence[Record], since: int) -> tuple[int, ...]:
    """Return the numbers of the incidents that faults after event number `since` belong to."""
    found = {e["incident"] for e in events[since:] if e["type"] == "fault_detected"}
    return tuple(sorted(found - {None, 0}))


def injection(
    kind: str,
    told: Mapping[str, Any],
    events: Sequence[Record],
    metrics: Sequence[Record],
    since: int,
    node_is_bad: bool,
) -> Injection:
    """Return the figures of a drill from what `unicron drill run --json` printed.

    Parameters
    ----------
    kind
        Which figure it is for.
    told
        The command's object.
    events, metrics
        The run's records.
    since
        Events that were there before the drill.
    node_is_bad
        Whether the culprit's node was to be taken out.
    """
    seconds = float("inf") if told["detected"] is None else float(told["detected"])
    where = told["node"] if told["rank"] is None else f"rank {told['rank']} on {told['node']}"
    bad = {told["node"]} if node_is_bad else set()
    return Injection(
        kind=kind,
        what=f"{told['drill']} of {where}",
        detection=seconds,
        over_three=seconds - 3 * mean_iteration(metrics, told["injected"]),
        named=bool(told["right"]),
        incidents=incidents_since(events, since),
        wrong=tuple(told["wrong"]),
        drained=len({*told["lost"], *told["drained"]} - bad),
    )


@dataclass(slots=True)
class Alarms:
    """Incidents that nobody had made."""

    false: list[str] = field(default_factory=list)

    def look(self, name: str, events: Sequence[Record], known: Sequence[int]) -> None:
        """Add the incidents of an ended run that no injection accounts for."""
        seen: set[int] = set()
        for event in events:
            number = event.get("incident")
            if event["type"] == "fault_detected" and number and number not in {*known, *seen}:
                seen.add(number)
                where = event["node"] if event["rank"] is None else f"rank {event['rank']} on {event['node']}"
                self.false.append(f"{name}: {event['error']} ({where or 'nobody named'})")

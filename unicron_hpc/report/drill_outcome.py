"""What came of a drill, as the journal tells it: found out, named rightly, mended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from unicron_hpc.report.journal import NOT_AS_EXPECTED

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who was made to fail: a rank of a node, or a node (`rank` None)."""

    node: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.node if self.rank is None else f"rank {self.rank} on {self.node}"


@dataclass(slots=True)
class Outcome:
    """What the journal says since the fault was ordered.

    Attributes
    ----------
    injected
        Unix time of the fault.
    detected
        Seconds from then to the journal's first word of a fault; None while there is none.
    error, method, severity
        How it was judged, by the latest verdict.
    named
        Who was blamed, as [node, rank]; rank None for a whole node.
    warned
        Nodes that were called slow, and how many times as slow as their like, at most.
    action
        What was done, in words.
    recovered
        Seconds from the fault to the end of its incident: an iteration is committed again.
    iteration
        That iteration.
    lost, drained
        Nodes that were taken out, and that Slurm was asked to drain.
    replaced
        Processes in seats before and after that are others now, as [node, rank].
    state, cause
        How the run ended (`finished`, `failed`, `cancelled`), if it has; and why.
    """

    injected: float
    detected: float | None = None
    error: str = ""
    method: str = ""
    severity: str = ""
    named: list[tuple[str, int | None]] = field(default_factory=list)
    warned: dict[str, float] = field(default_factory=dict)
    action: str = ""
    recovered: float | None = None
    iteration: int | None = None
    lost: list[str] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    replaced: list[tuple[str, int]] = field(default_factory=list)
    state: str = ""
    cause: str = ""
    open_incident: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self)


#: What is needed of each rank of an epoch.
_OF_RANK = ("task", "node", "slot", "rank", "pid", "replica", "stage")
#: Reasons of `plan_chosen`, in words.
_PLANS = {
    "spare": "a spare took its seats",
    "redistributed": "the layers were dealt anew over the nodes that are left",
}


def outcome(events: Sequence[Event], since: int, injected: float) -> Outcome:
    """Fold the journal from event number `since` on, when the fault had not been made yet.

    Parameters
    ----------
    events
        The whole journal.
    since
        Events that were there when the drill was ordered.
    injected
        Unix time of the fault.
    """
    reading = _Reading(Outcome(injected), _nodes_of_ranks(events[:since]))
    for event in events[since:]:
        with suppress(*NOT_AS_EXPECTED):
            reading.take(event)
    found = reading.found
    for suspects in reading.verdicts.values():
        found.named += suspects
    if not reading.verdicts:
        found.named = list(dict.fromkeys(reading.faults))
    found.replaced = _replaced(events, since)
    found.action = _action(found, reading.plans, reading.told)
    return found


@dataclass(slots=True)
class _Reading:
    """What the journal has told so far.

    Attributes
    ----------
    found
        What is known at once.
    by_rank
        Which node a task's rank stood for.
    faults, verdicts
        Who was named as a fault was noticed, and by each incident's last verdict.
    plans, told
        Reasons of plans, and actions.
    """

    found: Outcome
    by_rank: Mapping[tuple[str, int], str]
    faults: list[tuple[str, int | None]] = field(default_factory=list)
    verdicts: dict[int, list[tuple[str, int | None]]] = field(default_factory=dict)
    plans: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """One more event; a damaged one raises one of `NOT_AS_EXPECTED`."""
        found = self.found
        match event["type"]:
            case "fault_detected":
                if found.detected is None:
                    found.detected = event["time"] - found.injected
                    found.error, found.method, found.severity = _judged(event)
                found.open_incident = True
                if event["node"]:
                    self.faults.append((event["node"], event["rank"]))
                    if not self.verdicts:
                        found.error, found.method, found.severity = _judged(event)
            case "verdict":
                found.error, found.severity = event["error"], event["severity"]
                ranks = [
                    (self.by_rank.get((event["task"], rank), ""), rank)
                    for rank in event.get("suspects") or ()
                ]
                seen = {node for node, _ in ranks}
                nodes = [(node, None) for node in event.get("nodes") or () if node not in seen]
                self.verdicts[event["incident"]] = [*ranks, *nodes]
            case "slow_node":
                node = event["node"]
                found.warned[node] = max(event["factor"], found.warned.get(node, 0.0))
            case "agent_lost":
                found.lost.append(event["node"])
            case "drain_requested":
                found.drained.append(event["node"])
            case "plan_chosen":
                self.plans.append(event["reason"])
            case "action_chosen":
                self.told.append(str(event["action"]))
            case "incident_closed":
                found.open_incident = False
                found.recovered = event["time"] - found.injected
                found.iteration = event["iteration"]
            case "job_finished":
                found.state, found.cause = event["state"], _cause(event)


def _judged(event: Event) -> tuple[str, str, str]:
    return event["error"], event["method"], event["severity"]


def _cause(event: Event) -> str:
    return "\n".join(str(event[key]) for key in ("cause", "detail") if event.get(key))


def _nodes_of_ranks(events: Iterable[Event]) -> dict[tuple[str, int], str]:
    """Which node a task's rank stood for when the drill was ordered."""
    return {(rank["task"], rank["rank"]): rank["node"] for rank in ranks_of(events)}


def ranks_of(events: Iterable[Event]) -> list[Event]:
    """The ranks of the last epochs in these events, of every task; damaged events are passed over."""
    by_task: dict[str, list[Event]] = {}
    for event in events:
        with suppress(*NOT_AS_EXPECTED):
            if event["type"] == "transition_finished":
                by_task[event["task"]] = [{key: rank[key] for key in _OF_RANK} for rank in event["ranks"]]
    return [rank for ranks in by_task.values() for rank in ranks]


def _replaced(events: Sequence[Event], since: int) -> list[tuple[str, int]]:
    before = {(r["node"], r["slot"]): (r["pid"], r["rank"]) for r in ranks_of(events[:since])}
    after = {(r["node"], r["slot"]): r["pid"] for r in ranks_of(events)}
    return [(seat[0], rank) for seat, (pid, rank) in before.items() if seat in after and after[seat] != pid]


def _action(found: Outcome, plans: Sequence[str], told: Sequence[str]) -> str:
    if found.state == "failed":
        return "the run was ended"
    if told:
        return "; ".join(dict.fromkeys(told))
    if not plans:
        return "none"
    if plans[-1] in _PLANS:
        return _PLANS[plans[-1]]
    return "a new process in the same seat" if found.replaced else "again in place"


# -------------------------------------------------------------------- judgement


def named_rightly(found: Outcome, culprit: Culprit) -> bool:
    """Whether the culprit, and nobody else, was blamed.

    A node stands for its ranks and a rank for its node: who is told that rank 3 on n2 is at fault has been
    told of n2.
    """
    places = {node for node, _ in found.named}
    ranks = {rank for _, rank in found.named if rank is not None}
    if places != {culprit.node}:
        return False
    return culprit.rank is None or ranks == {culprit.rank}


def wronged(found: Outcome, culprit: Culprit, *, node_is_bad: bool) -> list[str]:
    """What was done to those who had done nothing, a line each.

    Parameters
    ----------
    node_is_bad
        Whether the culprit's node was rightly taken out, too: else it is as healthy as the others.
    """
    bad = {culprit.node} if node_is_bad else set()
    lines = [f"{node} was taken out" for node in found.lost if node not in bad]
    lines += [f"Slurm was asked to drain {node}" for node in found.drained if node not in bad]
    # Whoever shares a machine with a slow node may be somewhat slow, too.
    slowness = found.warned.get(culprit.node, 0.0)
    lines += [f"{node} was called slow" for node, factor in found.warned.items() if factor > slowness]
    lines += [
        f"{'the node' if rank is None else f'rank {rank}'} on {node} was blamed"
        for node, rank in found.named
        if node != culprit.node or (None not in (rank, culprit.rank) and rank != culprit.rank)
    ]
    if not found.state:
        lines += [
            f"the process of rank {rank} on {node} was replaced"
            for node, rank in found.replaced
            if node != culprit.node or (culprit.rank is not None and rank != culprit.rank)
        ]
    return list(dict.fromkeys(lines))

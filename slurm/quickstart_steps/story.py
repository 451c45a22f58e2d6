"""What happened when a node was lost, in plain words, from the journal and the metrics alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quickstart_steps.run_files import Record


@dataclass(frozen=True, slots=True)
class Kill:
    """A node that was killed on purpose.

    Attributes
    ----------
    node
        Its name.
    time
        Unix time just before.
    """

    node: str
    time: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """The journal's records of one loss.

    Attributes
    ----------
    kill
        What was done to the job.
    lost, fault, plan, done, closed
        `agent_lost`, `fault_detected`, `plan_chosen`, `transition_finished`, `incident_closed`.
    before
        The ranks before the loss.
    drain
        `drain_result`, where it has come.
    """

    kill: Kill
    lost: Record
    fault: Record
    plan: Record
    done: Record
    closed: Record
    before: Sequence[Record]
    drain: Record | None


def recovery(events: Sequence[Record], kill: Kill) -> Recovery | None:
    """Return the records of the recovery from `kill`; None while it is not complete."""
    before: Sequence[Record] = ()
    for event in events:
        if event["type"] == "transition_finished" and event["time"] < kill.time:
            before = event["ranks"]
    after = [event for event in events if event["time"] >= kill.time]
    lost = _first(after, "agent_lost", node=kill.node)
    fault = _first(after, "fault_detected", node=kill.node)
    if lost is None or fault is None:
        return None
    closed = _first(after, "incident_closed", incident=fault["incident"])
    if closed is None:
        return None
    within = [event for event in after if event["time"] <= closed["time"]]
    plan, done = _last(within, "plan_chosen"), _last(within, "transition_finished")
    if plan is None or done is None:
        return None
    drain = _first(after, "drain_result", node=kill.node)
    return Recovery(kill, lost, fault, plan, done, closed, before, drain)


def what_happened(found: Recovery) -> list[str]:
    """Return the recovery as sentences."""
    node = found.kill.node
    carried = [rank for rank in found.before if rank["node"] == node]
    words = [f"Node {node} was killed: its slurmd, its agent and its rank were gone at once."]
    for rank in carried:
        words.append(f"It had computed {_layers(rank)} of pipeline {rank['replica']} (rank {rank['rank']}).")
    words.append(
        f"The coordinator noticed by {found.fault['method']} ({found.fault['evidence']}). "
        f"The severity is {found.fault['severity']}: the node is out."
    )
    words.append(_what_the_plan_did(found))
    sources = found.done["state_sources"]
    words.append(
        f"State: {sources.get('local', 0):,} bytes stayed where they were, {sources.get('peer', 0):,} bytes "
        f"came from other nodes' memory, {sources.get('disk', 0):,} bytes were read from disk."
    )
    stayed = _same_processes(found)
    words.append(f"{stayed} of the {len(found.before)} ranks kept their process; nothing was resubmitted.")
    if found.drain is not None:
        words.append(f"Draining: {found.drain['message']}.")
    return words


def how_long(found: Recovery) -> list[tuple[str, float, str]]:
    """Return (step, seconds, explanation), in the order of time; the last is the whole."""
    steps = found.done.get("steps", {})
    rows = [
        ("detection", found.lost["time"] - found.kill.time, "from the kill until the node is declared lost"),
        ("planning", found.plan.get("seconds"), "choosing the new layout"),
        ("processes", steps.get("start"), "new ranks, forked from a process that has torch imported already"),
        ("groups", steps.get("groups"), "process groups of the new layout"),
        ("model", steps.get("chunk"), "building the layers that a rank did not have"),
        ("state", steps.get("state"), "moving and checking weights and optimizer state"),
        (
            "to the commit",
            found.closed["time"] - found.done["time"],
            f"until iteration {found.closed['iteration']} is committed by all ranks",
        ),
        ("in all", found.closed["time"] - found.kill.time, "from the kill to the next committed iteration"),
    ]
    return [(name, float(seconds), text) for name, seconds, text in rows if seconds is not None]


def table(rows: Sequence[tuple[str, float, str]]) -> list[str]:
    """Return rows of seconds as aligned lines."""
    return [f"{name:<14}{seconds:9.4f} s   {text}" for name, seconds, text in rows]


def layout(plan: Record) -> list[str]:
    """Return the layout of a `plan_chosen`, a line per pipeline."""
    lines = []
    for number, replica in enumerate(plan["replicas"]):
        stages = ", ".join(f"{_layers(stage)} on {'+'.join(stage['nodes'])}" for stage in replica["stages"])
        lines.append(f"pipeline {number}: {stages}; {replica['micro_batches']} micro-batches an iteration")
    return lines


def is_unbroken(metrics: Sequence[Record]) -> bool:
    """Tell whether every iteration from the first to the last was committed exactly once, in order."""
    numbers = [line["iteration"] for line in metrics]
    return bool(numbers) and numbers == list(range(1, len(numbers) + 1))


def _what_the_plan_did(found: Recovery) -> str:
    nodes_before = {rank["node"] for rank in found.before}
    new = sorted(set(found.plan["nodes"]) - nodes_before)
    if len(new) == 1:
        return f"Spare {new[0]} took its seat."
    if new:
        return f"Spares {', '.join(new)} took over."
    left = ", ".join(found.plan["nodes"])
    shape = "; ".join(layout(found.plan))
    return f"No spare was left, so the layers were dealt anew over {left}: {shape}."


def _same_processes(found: Recovery) -> int:
    pids = {(rank["node"], rank["pid"]) for rank in found.done["ranks"]}
    return sum((rank["node"], rank["pid"]) in pids for rank in found.before)


def _layers(thing: Record) -> str:
    first, last = thing["layers"]
    return f"layer {first}" if first == last else f"layers {first}-{last}"


def _first(events: Sequence[Record], kind: str, **fields: object) -> Record | None:
    for event in events:
        if event["type"] == kind and all(event.get(key) == value for key, value in fields.items()):
            return event
    return None


def _last(events: Sequence[Record], kind: str) -> Record | None:
    return _first(list(reversed(events)), kind)

"""From the records of a run to the figures of a fault; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.watching import BenchError, Record

#: Figures that every healed fault has, in the order of events; all in seconds.
STEPS = (
    "detection",  # from the fault to the journal's word of it
    "gather",  # survivors stop and say what they hold
    "planning",  # resume point and layout
    "start",  # processes for empty seats, forked warm
    "rebuild",  # process groups: built, and each used once
    "chunk",  # a model for a new place; 0 where every rank keeps its own
    "state",  # weights and optimizer state to where they are needed, digests checked
    "transition",  # from the first sign to the epoch that runs: all of the above but the detection
    "to_commit",  # from the fault to the first iteration computed and committed afterwards
)
#: How much later than the agent this process may see a death, in seconds.
SLACK = 0.1


@dataclass(frozen=True, slots=True)
class Healed:
    """One fault that the run recovered from.

    Attributes
    ----------
    seconds
        The figures of `STEPS`.
    what
        The fault in words.
    reason
        The planner's: `same seats`, `spare` or `redistributed`.
    epochs
        Transitions that it took.
    disk_bytes
        State read from disk; must be 0.
    """

    seconds: Mapping[str, float]
    what: str
    reason: str
    epochs: int
    disk_bytes: int


def first_after(metrics: Iterable[Record], epoch: int, moment: float) -> Record | None:
    """Return the first iteration that an epoch after `epoch` computed, committed after `moment`.

    An iteration that was complete when the fault came is committed by the survivors without being computed
    again; it carries no computing time and does not count here.
    """
    for record in metrics:
        if record["epoch"] > epoch and record["time"] > moment and record["iteration_seconds"] > 0:
            return record
    return None


def healed(events: Sequence[Record], metrics: Sequence[Record], epoch: int, died: float, what: str) -> Healed:
    """Return the figures of the one fault that happened at `died` in `epoch`.

    Raises
    ------
    BenchError
        When the records do not show it.
    """
    commit = first_after(metrics, epoch, died)
    if commit is None:
        raise BenchError(f"no iteration was committed after {what}")
    until = [event for event in events if event["time"] <= commit["time"]]
    # The sign may be journalled a moment before the death is seen from here.
    signs = [e for e in until if e["type"] in ("fault_detected", "agent_lost") and e["time"] > died - SLACK]
    later = [event for event in until if event["epoch"] > epoch]
    transitions = [event for event in later if event["type"] == "transition_finished"]
    plans = [event for event in later if event["type"] == "plan_chosen"]
    begun = [event for event in later if event["type"] == "transition_started"]
    if not (signs and transitions and plans and begun):
        raise BenchError(f"the journal does not show how {what} was recovered from")
    last = transitions[-1]
    steps = last["steps"]
    return Healed(
        seconds={
            "detection": max(0.0, signs[0]["time"] - died),
            "gather": steps["gather"],
            "planning": steps["planning"],
            "start": steps["start"],
            "rebuild": steps["groups"] + steps["warm"],
            "chunk": steps["chunk"],
            "state": steps["state"],
            "transition": last["time"] - max(signs[0]["time"], begun[0]["time"]),
            "to_commit": commit["time"] - died,
        },
        what=what,
        reason=plans[-1]["reason"],
        epochs=len(begun),
        disk_bytes=sum(event["state_sources"]["disk"] for event in transitions),
    )


def losses(metrics: Iterable[Record]) -> dict[int, float]:
    """Return iteration -> loss; the last word counts where an iteration was computed twice."""
    return {int(record["iteration"]): float(record["loss"]) for record in metrics}


def worst_difference(found: Mapping[int, float], wanted: Mapping[int, float]) -> tuple[float, int]:
    """Return the largest relative difference between losses of the same iterations, and their number."""
    common = found.keys() & wanted.keys()
    return max((abs(found[i] - wanted[i]) / abs(wanted[i]) for i in common), default=0.0), len(common)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)}..{_short(self.high)})"


def _short(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 10 else f"{seconds:.1f}"

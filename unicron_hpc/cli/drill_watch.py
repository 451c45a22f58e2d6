"""Following a drill to its outcome, and judging that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from unicron_hpc.cli.waiting import last_iteration
from unicron_hpc.errors import UnicronError
from unicron_hpc.report.drill_outcome import Culprit, Outcome, named_rightly, outcome, wronged
from unicron_hpc.report.journal import EVENTS, METRICS, read_events, read_lines
from unicron_hpc.supervisor.drill_client import read_answer
from unicron_hpc.supervisor.drill_kinds import Expected
from unicron_hpc.supervisor.drill_notes import Note

T = TypeVar("T")

#: Time between two looks at the run folder, in seconds. Records carry their own times.
_LOOK = 0.25
#: What is said so long after the recovery still counts, in seconds.
_SETTLE = 1.0
#: Iterations that must be committed after a disturbance is over for training to have gone on.
_MORE_ITERATIONS = 3
#: How long a warning of a slow node may come after the disturbance, in seconds.
_LATE_WARNING = 5.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A drill that has been ordered.

    Attributes
    ----------
    run_folder, order
        Where its note and the journal lie.
    culprit, expected
        Who fails, and what must come of it.
    since
        Events in the journal when it was ordered.
    seconds
        How long the disturbance lasts; 0 for one without an end.
    limit
        Longest wait, in seconds, for the fault to be made and for its outcome each.
    settle
        What is drained so long after the loss of a node still counts, in seconds: that happens when no other
        has been lost within `recovery.node_timeout`.
    """

    run_folder: Path
    order: str
    culprit: Culprit
    expected: Expected
    since: int
    seconds: float
    limit: float
    settle: float

    @property
    def node_is_bad(self) -> bool:
        """Whether the culprit's node is rightly taken out."""
        return self.expected in (Expected.NODE_NAMED, Expected.NODE_OR_NOBODY, Expected.SLOW_NAMED)

    def events(self) -> list[dict[str, Any]]:
        """The whole journal."""
        return list(read_events(self.run_folder / EVENTS))


def wait_injected(drill: Watched) -> Note:
    """The note of the fault's true moment.

    Raises
    ------
    UnicronError
        When the agent refuses after all, or the moment does not come.
    """
    note = _wait(lambda: _made(drill), drill.limit)
    if note is None:
        raise UnicronError(
            f"the fault was not made within {drill.limit:g} s",
            where=drill.culprit.node,
            hint="Is the rank still there, and does training reach the iteration? See `unicron events`.",
        )
    if note.state == "refused":
        raise UnicronError(f"the drill {note.detail}", where=drill.culprit.node)
    return note


def _made(drill: Watched) -> Note | None:
    note = read_answer(drill.run_folder, drill.order)
    return None if note is None or note.state == "armed" else note


def wait_outcome(drill: Watched, injected: float) -> Outcome:
    """Follow the journal until the drill is over, or the limit is reached; what is known then."""
    seen = outcome(drill.events(), drill.since, injected)

    def over() -> Outcome | None:
        nonlocal seen
        seen = outcome(drill.events(), drill.since, injected)
        return seen if _is_over(drill, seen) else None

    if _wait(over, drill.limit + drill.seconds) is not None and not seen.state:
        time.sleep(drill.settle if seen.lost else _SETTLE)
        seen = outcome(drill.events(), drill.since, injected)
    return seen


def _is_over(drill: Watched, seen: Outcome) -> bool:
    if seen.state:
        return True
    healed = seen.recovered is not None and not seen.open_incident
    passed = time.time() - seen.injected
    match drill.expected:
        case Expected.RANK_NAMED | Expected.NODE_NAMED:
            return healed
        case Expected.SLOW_NAMED:
            noticed = bool(seen.warned) or healed
            return passed > drill.seconds + (0 if noticed else _LATE_WARNING)
        case Expected.NODE_OR_NOBODY | Expected.NOBODY_NAMED:
            quiet = not seen.open_incident and passed > drill.seconds
            return quiet and _committed_after(drill.run_folder, seen.injected + drill.seconds)
    return False


def _committed_after(run_folder: Path, moment: float) -> bool:
    times = (line.get("time") for line in read_lines(run_folder / METRICS))
    later = [when for when in times if isinstance(when, int | float) and when > moment]
    return len(later) >= _MORE_ITERATIONS


def wait_iteration(run_folder: Path, iteration: int, limit: float) -> None:
    """Wait until an iteration is committed.

    Raises
    ------
    UnicronError
        When that takes longer than `limit` seconds.
    """
    if _wait(lambda: (last_iteration(run_folder / METRICS) or 0) >= iteration or None, limit) is None:
        raise UnicronError(f"iteration {iteration} was not committed within {limit:g} s")


def _wait(probe: Callable[[], T | None], seconds: float) -> T | None:
    """The first answer of `probe` that is not None; None when the time is up."""
    deadline = time.monotonic() + seconds
    while (answer := probe()) is None and time.monotonic() < deadline:
        time.sleep(_LOOK)
    return answer


def failures(drill: Watched, seen: Outcome) -> list[str]:
    """What is not as it must be, a line each; nothing where the drill was passed."""
    # Of a loss that is not finite every rank knows alike: whoever is the first to tell of it is right.
    everybody = drill.expected is Expected.JOB_FAILS_SAYING_WHY
    judged = replace(seen, named=[]) if everybody else seen
    lines = wronged(judged, drill.culprit, node_is_bad=drill.node_is_bad)
    right = named_rightly(seen, drill.culprit)
    match drill.expected:
        case Expected.JOB_FAILS:
            if not right:
                lines.append(f"{drill.culprit} was not named")
            return lines if seen.state == "failed" else [*lines, "the run has not failed"]
        case Expected.JOB_FAILS_SAYING_WHY:
            if not seen.error:
                lines.append("no error was named")
            return lines if seen.state == "failed" else [*lines, "the run has not failed"]
        case Expected.SLOW_NAMED:
            if drill.culprit.node not in seen.warned and not right:
                lines.append(f"{drill.culprit.node} was not called slow")
        case Expected.RANK_NAMED | Expected.NODE_NAMED:
            if not right:
                lines.append(f"{drill.culprit} was not named")
            if seen.recovered is None:
                lines.append("no iteration was committed after the fault")
        case Expected.NOBODY_NAMED | Expected.NODE_OR_NOBODY:
            if not _committed_after(drill.run_folder, seen.injected + drill.seconds):
                lines.append("training did not go on")
            if drill.expected is Expected.NOBODY_NAMED and seen.named:
                lines.append(f"somebody was blamed: {seen.named}")
    if seen.state in ("failed", "cancelled"):
        lines.append(f"the run ended as {seen.state}: {seen.cause.splitlines()[0] if seen.cause else ''}")
    return lines

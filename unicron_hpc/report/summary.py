"""summary.json: what a run did, and where its time went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unicron_hpc.report.journal import (
    EVENTS,
    METRICS,
    NOT_AS_EXPECTED,
    SUMMARY,
    read_lines,
    write_whole,
)


def write_summary(run_folder: Path, *, state: str, exit_code: int, cause: str, started: float) -> None:
    """Write the summary of a run that has just ended.

    Parameters
    ----------
    run_folder
        With journal and metrics.
    state
        `finished`, `failed` or `cancelled`.
    exit_code, cause
        How it ended.
    started
        Unix time at which the first coordinator took office.
    """
    finished = time.time()
    events, metrics = list(read_lines(run_folder / EVENTS)), list(read_lines(run_folder / METRICS))
    # A requeued job goes on in its files; what came before is of an attempt that has had its own summary.
    begun = max((k for k, event in enumerate(events) if event.get("type") == "job_started"), default=None)
    if begun is not None:
        since = events[begun].get("time")
        events, metrics = events[begun:], [line for line in metrics if _not_before(since, line.get("time"))]
    content = summarize(events, metrics, started, finished)
    write_whole(run_folder / SUMMARY, {"state": state, "exit_code": exit_code, "cause": cause, **content})


def summarize(
    events: Iterable[Mapping[str, Any]],
    metrics: Iterable[Mapping[str, Any]],
    started: float,
    finished: float,
) -> dict[str, Any]:
    """Count iterations, incidents and seconds.

    Returns
    -------
    dict
        `started`, `finished` (unix time), `wall_seconds`; `iterations` per task; `incidents` (number, error,
        node, rank, seconds from the first sign to the next commit); `time_lost` in seconds by error, and
        `startup` for the time to the first iteration; `goodput`: seconds in committed iterations that were
        not rolled back, over wall seconds (of the task that has most).
    """
    iterations: dict[str, int] = {}
    useful: dict[str, dict[int, float]] = {}
    first_commit: float | None = None
    for line in metrics:
        try:
            task, number = str(line["task"]), int(line["iteration"])
            took = float(line["iteration_seconds"])
            begun = float(line["time"]) - took
        except NOT_AS_EXPECTED:
            continue
        iterations[task] = number
        seconds = useful.setdefault(task, {})
        if number in seconds:  # rolled back: this one and all after it are computed again
            seconds = useful[task] = {n: s for n, s in seconds.items() if n < number}
        seconds[number] = took
        first_commit = begun if first_commit is None else first_commit
    incidents: dict[int, dict[str, Any]] = {}
    lost: dict[str, float] = {"startup": max(0.0, (first_commit or finished) - started)}
    for event in events:
        with suppress(*NOT_AS_EXPECTED):
            _count(event, incidents, lost)
    wall = max(finished - started, 1e-9)
    best = max((sum(seconds.values()) for seconds in useful.values()), default=0.0)
    return {
        "started": started,
        "finished": finished,
        "wall_seconds": wall,
        "iterations": iterations,
        "incidents": list(incidents.values()),
        "time_lost": lost,
        "goodput": min(1.0, best / wall),
    }


def _count(event: Mapping[str, Any], incidents: dict[int, dict[str, Any]], lost: dict[str, float]) -> None:
    """Add an event to the incidents and to the seconds lost by error."""
    number = event.get("incident")
    if number is None:
        return
    if event["type"] == "fault_detected" and number not in incidents:
        told = {key: event[key] for key in ("error", "node", "rank", "severity")}
        incidents[number] = {"incident": number, **told, "seconds": None}
    elif event["type"] == "incident_closed":
        seconds = float(event["seconds"])
        unknown = {"incident": number, "error": "unknown", "node": "", "rank": None, "severity": ""}
        known = incidents.setdefault(number, unknown)
        # It may have been opened again.
        known["seconds"] = seconds + (known.get("seconds") or 0.0)
        lost[known["error"]] = lost.get(known["error"], 0.0) + seconds


def _not_before(since: object, when: object) -> bool:
    """Whether a time is not before another one, as far as both are known."""
    return not (isinstance(since, int | float) and isinstance(when, int | float)) or when >= since

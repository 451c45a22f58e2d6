"""summary.json: what a run did, and where its time went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unicron_hpc.report.journal import EVENTS, METRICS, SUMMARY, read_lines, write_whole


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
    content = summarize(
        list(read_lines(run_folder / EVENTS)), list(read_lines(run_folder / METRICS)), started, finished
    )
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
        task, number = str(line["task"]), int(line["iteration"])
        iterations[task] = number
        seconds = useful.setdefault(task, {})
        if number in seconds:  # rolled back: this one and all after it are computed again
            seconds = useful[task] = {n: s for n, s in seconds.items() if n < number}
        seconds[number] = float(line["iteration_seconds"])
        begun = float(line["time"]) - float(line["iteration_seconds"])
        first_commit = begun if first_commit is None else first_commit
    incidents: dict[int, dict[str, Any]] = {}
    lost: dict[str, float] = {"startup": max(0.0, (first_commit or finished) - started)}
    for event in events:
        incident = event.get("incident")
        if incident is None:
            continue
        if event["type"] == "fault_detected" and incident not in incidents:
            incidents[incident] = {
                "incident": incident,
                "error": event["error"],
                "node": event["node"],
                "rank": event["rank"],
                "severity": event["severity"],
                "seconds": None,
            }
        elif event["type"] == "incident_closed":
            known = incidents.setdefault(
                incident, {"incident": incident, "error": "unknown", "node": "", "rank": None, "severity": ""}
            )
            # It may have been opened again.
            known["seconds"] = float(event["seconds"]) + (known.get("seconds") or 0.0)
            lost[known["error"]] = lost.get(known["error"], 0.0) + float(event["seconds"])
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

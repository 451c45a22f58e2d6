"""What a job is doing now, as its journal and metrics tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unicron_hpc.report.journal import EVENTS, METRICS, NOT_AS_EXPECTED, read_events, read_lines

#: Slurm's word for each way in which a run ends.
ENDED = {"finished": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED"}
_OF_RANK = ("rank", "pid", "task", "replica", "stage", "layers", "node")


def read_status(run_folder: Path) -> dict[str, Any]:
    """The status of the run in `run_folder`."""
    status = status_of(read_events(run_folder / EVENTS), read_lines(run_folder / METRICS))
    return {**status, "run_dir": str(run_folder)}


def status_of(events: Iterable[Mapping[str, Any]], metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Fold a journal into a status.

    Returns
    -------
    dict
        `job_id`, `shown_id` (as Slurm's commands show it), `ends` (unix time of the time limit, or None),
        `state` (Slurm's word), `epoch`, `iteration` (committed, of the slowest task),
        `iterations` and `train_iters` per task, `coordinator`, `incidents`, `cause` (of a failed run), and
        `nodes`: `name`, `role` (`active`, `spare`, `lost`), `agent_pid`, `ranks`: `rank`, `pid`, `task`,
        `replica`, `stage`, `layers` ([first, last]).
    """
    job: dict[str, Any] = {
        "job_id": None,
        "shown_id": None,
        "ends": None,
        "state": "PENDING",
        "epoch": 0,
        "iteration": 0,
        "iterations": {},
        "train_iters": {},
        "coordinator": None,
        "incidents": 0,
        "cause": "",
    }
    roles: dict[str, str] = {}
    agents: dict[str, int | None] = {}
    used: dict[str, set[str]] = {}
    ranks: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        with suppress(*NOT_AS_EXPECTED):
            job["epoch"] = max(job["epoch"], int(event.get("epoch", 0)))
            match event["type"]:
                case "job_started":
                    # A requeued job goes on in its journal: nothing of before is true any more.
                    for known in (roles, agents, used, ranks):
                        known.clear()
                    job.update(epoch=int(event["epoch"]), incidents=0, cause="")
                    ends = event.get("ends")
                    ends = ends if isinstance(ends, int | float) else None
                    job.update(job_id=str(event["job_id"]), state="RUNNING", ends=ends)
                    job.update(shown_id=event.get("shown_id", event["job_id"]))
                    job.update(train_iters=dict(event["train_iters"]))
                    for place, node in enumerate(event["nodes"]):
                        roles[node] = "active" if place < event["active"] else "spare"
                        agents[node] = None
                case "coordinator_elected":
                    job["coordinator"] = event["node"]
                case "agent_joined":
                    agents[event["node"]] = event["pid"]
                case "agent_lost":
                    roles[event["node"]] = "lost"
                case "plan_chosen":
                    used[event["task"]] = set(event["nodes"])
                    _assign_roles(roles, used)
                case "transition_finished":
                    ranks[event["task"]] = [_of_rank(rank) for rank in event["ranks"]]
                case "task_finished":
                    used.pop(event["task"], None)
                case "fault_detected":
                    job["incidents"] = max(job["incidents"], int(event.get("incident") or 0))
                case "job_finished":
                    job["state"] = ENDED.get(event["state"], "FAILED")
                    job["cause"] = event["cause"]
    for line in metrics:
        with suppress(*NOT_AS_EXPECTED):
            job["iterations"][line["task"]] = int(line["iteration"])
    job["iteration"] = min((job["iterations"].get(task, 0) for task in job["train_iters"]), default=0)
    job["nodes"] = [
        {
            "name": node,
            "role": role,
            "agent_pid": agents.get(node),
            "ranks": [
                {key: value for key, value in rank.items() if key != "node"}
                for of_task in ranks.values()
                for rank in of_task
                if rank["node"] == node and role != "lost"
            ],
        }
        for node, role in roles.items()
    ]
    return job


def _of_rank(rank: Mapping[str, Any]) -> dict[str, Any]:
    first, last = rank["layers"]
    return {**{key: rank[key] for key in _OF_RANK}, "layers": [first, last]}


def _assign_roles(roles: dict[str, str], used: Mapping[str, set[str]]) -> None:
    training = set().union(*used.values())
    for node, role in roles.items():
        if role != "lost":
            roles[node] = "active" if node in training else "spare"

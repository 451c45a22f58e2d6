"""The main job on a real cluster: a rank killed, a node lost with a spare, another lost with none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from testcluster.api import Cluster

from unicron_hpc.report.status import read_status

from .job import ENVIRONMENT, STATUS, Job, submit
from .run import Event

#: Iterations at which the faults strike: early enough that training still runs after each recovery.
RANK_DIES_AT, NODE_DIES_AT, SECOND_NODE_DIES_AT = 5, 15, 35


@dataclass(frozen=True, slots=True)
class ThreeFaults:
    """What was done to a run and what was seen at the time; the rest is in its journal.

    Attributes
    ----------
    job
        The job, ended.
    killed_rank
        The rank that got SIGKILL, as the status told it.
    replaced, respared, redistributed
        `transition_finished` after each fault.
    after_rank, after_node, after_second_node
        `unicron status --json` after each recovery.
    lost, second_lost
        Names of the nodes that were killed.
    alive
        Whether each process of the epoch after the rank's death was there, by rank.
    drain_is_allowed
        Whether the plain user is the cluster's administrator (a cluster that no root started).
    """

    job: Job
    killed_rank: Event
    replaced: Event
    respared: Event
    redistributed: Event
    after_rank: Event
    after_node: Event
    after_second_node: Event
    lost: str
    second_lost: str
    alive: dict[int, bool]
    drain_is_allowed: bool


def status(job: Job) -> Event:
    """Return what `unicron status --json` prints, without the seconds that a command in a container takes."""
    return read_status(job.folder)


def status_command(job: Job) -> Event:
    """Return what `unicron status --json` does print."""
    done = job.cluster.exec([STATUS, "status", "--json", job.job_id], env=ENVIRONMENT)
    told: Event = json.loads(done.stdout)
    return told


def alive_on_their_nodes(job: Job, ranks: list[Event]) -> dict[int, bool]:
    """Return for each rank whether its process is there, asking each node once."""
    pids: dict[str, dict[int, int]] = {}
    for rank in ranks:
        pids.setdefault(rank["node"], {})[rank["rank"]] = rank["pid"]
    alive = {}
    for node, here in pids.items():
        done = job.cluster.exec(["kill", "-0", *map(str, here.values())], node=node, check=False)
        alive.update(dict.fromkeys(here, done.returncode == 0))
    return alive


def ranks_of(told: Event) -> list[Event]:
    """Return all ranks of a status, each with its `node`, by rank."""
    ranks = [{**rank, "node": node["name"]} for node in told["nodes"] for rank in node["ranks"]]
    return sorted(ranks, key=lambda rank: rank["rank"])


def run_three_faults(cluster: Cluster, name: str, **sections: Any) -> ThreeFaults:
    """Run the small training under three faults and return when Slurm has ended the job."""
    told = cluster.status()
    job = submit(cluster, name, **sections)

    job.wait_iteration(RANK_DIES_AT)
    victim = next(rank for rank in ranks_of(status(job)) if rank["node"] == "n2")
    job.signal_rank(victim, "KILL")
    job.wait_recovered(count=1)
    after_rank = status(job)
    alive = alive_on_their_nodes(job, ranks_of(after_rank))

    job.wait_iteration(NODE_DIES_AT)
    cluster.kill_node("n3")
    job.wait_recovered(count=2)
    after_node = status(job)

    job.wait_iteration(SECOND_NODE_DIES_AT)
    cluster.kill_node("n4")
    job.wait_recovered(count=3)
    after_second_node = status(job)
    job.wait_end()

    finished = job.events("transition_finished")
    return ThreeFaults(
        job=job,
        killed_rank=victim,
        replaced=next(event for event in finished if event["epoch"] == after_rank["epoch"]),
        respared=next(event for event in finished if event["epoch"] == after_node["epoch"]),
        redistributed=next(event for event in finished if event["epoch"] == after_second_node["epoch"]),
        after_rank=after_rank,
        after_node=after_node,
        after_second_node=after_second_node,
        lost="n3",
        second_lost="n4",
        alive=alive,
        drain_is_allowed=told["user"] == told["admin"],
    )

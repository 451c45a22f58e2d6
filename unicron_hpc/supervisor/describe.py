"""Layouts and ranks in the words of the journal."""

from __future__ import annotations

from typing import Any

from unicron_hpc.planner.layout import Layout
from unicron_hpc.supervisor.seats import Seats


def describe_replicas(layout: Layout) -> list[dict[str, Any]]:
    """A layout's replicas for the journal: micro-batches, and per stage its layers and nodes."""
    return [
        {
            "micro_batches": replica.micro_batches,
            "stages": [
                {"layers": [stage.first, stage.last], "nodes": [layout.seats[r].node for r in stage.ranks]}
                for stage in replica.stages
            ],
        }
        for replica in layout.replicas
    ]


def describe_ranks(layout: Layout, seats: Seats, task: str) -> list[dict[str, Any]]:
    """Every rank for the journal and `unicron status`."""
    described = []
    for position in layout.positions():
        seat = layout.seats[position.rank]
        process = seats.get(seat)
        described.append(
            {
                "node": seat.node,
                "slot": seat.slot,
                "rank": position.rank,
                "pid": process.pid if process else None,
                "task": task,
                "replica": position.replica,
                "stage": position.stage_index,
                "layers": [position.stage.first, position.stage.last],
            }
        )
    return sorted(described, key=lambda rank: rank["rank"])

"""A plan as plain data, for programs and for whatever shows it."""

from __future__ import annotations

from typing import Any

from unicron_hpc.planner.cost import model_flops
from unicron_hpc.planner.outlook import Outlook


def described(outlook: Outlook) -> dict[str, Any]:
    """The fields of `unicron plan --json` for one task. Seconds, bytes, FLOP/s; layers count from 0."""
    layout, prediction = outlook.layout, outlook.prediction
    found: dict[str, Any] = {
        "task": outlook.work.name,
        "hardware": outlook.work.hardware.name,
        "nodes": [node.name for node in outlook.nodes],
        "layout": {
            "replicas": [
                {
                    "stages": [
                        {
                            "layers": [stage.first, stage.last],
                            "nodes": sorted({layout.seats[rank].node for rank in stage.ranks}),
                            "ranks": list(stage.ranks),
                        }
                        for stage in replica.stages
                    ],
                    "micro_batches": replica.micro_batches,
                    "first_micro_batch": replica.first_micro_batch,
                    "seconds": seconds,
                }
                for replica, seconds in zip(layout.replicas, prediction.replica_seconds, strict=True)
            ]
        },
        "tensor": layout.tensor,
        "pipeline": max(len(replica.stages) for replica in layout.replicas),
        "data": len(layout.replicas),
        "micro_batch_size": layout.micro_batch_size,
        "micro_batches": [replica.micro_batches for replica in layout.replicas],
        "world_size": layout.world_size,
        "iteration_seconds": prediction.iteration_seconds,
        "flops": prediction.flops,
        "memory_bytes": prediction.memory_bytes,
        "memory_limit": prediction.memory_limit,
        "idle_nodes": list(outlook.idle_nodes),
        "notes": list(outlook.notes),
        "runners_up": lost_out(outlook),
    }
    if outlook.moves is not None:
        found["moves"] = [
            {
                "unit": move.unit,
                "tensor_index": move.tensor_index,
                "source": move.source,
                "target": move.target,
                "from_node": layout.seats[move.source].node,
                "to_node": layout.seats[move.target].node,
                "bytes": move.bytes,
            }
            for move in outlook.moves.moves
        ]
        found["missing"] = [list(key) for key in outlook.moves.missing]
    return found


def lost_out(outlook: Outlook) -> list[dict[str, Any]]:
    """The runners-up, and why each lost."""
    if outlook.choice is None:
        return []
    best = outlook.choice.candidate
    found = []
    for other in outlook.choice.runners_up:
        found.append(
            {
                "layout": other.describe(),
                "iteration_seconds": other.seconds,
                "flops": model_flops(outlook.work) / other.seconds,
                "slower_by": other.seconds / best.seconds - 1,
                "why": _why(outlook, other),
            }
        )
    return found


def _why(outlook: Outlook, other: Any) -> str:
    """The largest part of the difference in seconds, in words."""
    assert outlook.choice is not None
    best = outlook.choice.candidate
    if other.seconds <= best.seconds * (1 + 1e-9):
        return "equally fast, but needs more ranks"
    ours, theirs = _parts(best), _parts(other)
    theirs["gradient sum and optimizer"] = other.seconds - sum(theirs.values())
    ours["gradient sum and optimizer"] = best.seconds - sum(ours.values())
    name = max(theirs, key=lambda part: theirs[part] - ours[part])
    return f"{name}: {theirs[name]:.3g} s, the best has {ours[name]:.3g} s"


def _parts(candidate: Any) -> dict[str, float]:
    """Fill and drain, and work, of the replica that finishes last."""
    pipe, count = max(candidate.pipes(), key=lambda entry: entry[0].through + (entry[1] - 1) * entry[0].each)
    return {
        "pipeline fill and drain": pipe.through - pipe.each,
        "micro-batches on the slowest stage": count * pipe.each,
    }

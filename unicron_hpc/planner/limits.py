"""Demands that no layout can meet: which constraint binds, and the nearest demand that would fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.cost import MEMORY_SHARE, stage_costs
from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.options import degrees, sizes
from unicron_hpc.planner.work import NodeSlots, TaskWork


def check_demand(work: TaskWork, nodes: Sequence[NodeSlots], previous: Layout | None) -> None:
    """Refuse what can be seen to be impossible without a search.

    Raises
    ------
    PlanError
        Naming the argument at fault and the nearest value that would do.
    """
    where = f"task '{work.name}'"
    if not nodes or max(n.slots for n in nodes) < 1:
        raise PlanError("no node is left to run on", where=where, hint="1 node is the least")
    tensor = previous.tensor if previous else work.tensor
    size = previous.micro_batch_size if previous else work.micro_batch_size
    if size is not None and work.global_batch_size % size:
        near = max(b for b in range(1, size + 1) if work.global_batch_size % b == 0)
        raise PlanError(
            f"global_batch_size {work.global_batch_size} is not a multiple of micro_batch_size {size}",
            where=where,
            hint=f"micro_batch_size {near} divides it",
        )
    if tensor is not None:
        _check_tensor(work, nodes, tensor, where)
    if previous is None and work.pipeline is not None:
        _check_pipeline(work, nodes, work.pipeline, where)


def _check_tensor(work: TaskWork, nodes: Sequence[NodeSlots], tensor: int, where: str) -> None:
    for argument, value in (
        ("num_attention_heads", work.num_attention_heads),
        ("num_query_groups", work.num_query_groups or work.num_attention_heads),
        ("ffn_hidden_size", work.ffn),
        ("vocab_size", work.vocab_size),
    ):
        if value % tensor:
            near = max(t for t in range(1, tensor + 1) if value % t == 0)
            raise PlanError(
                f"tensor_model_parallel_size {tensor} does not divide {argument} {value}",
                where=where,
                hint=f"{near} does",
            )
    widest = max(n.slots for n in nodes)
    if widest < tensor:
        raise PlanError(
            f"tensor_model_parallel_size {tensor} does not fit in a node of {widest} ranks",
            where=where,
            hint=f"at most {widest}, or {tensor} ranks per node: a tensor group stays inside one node",
        )


def _check_pipeline(work: TaskWork, nodes: Sequence[NodeSlots], pipeline: int, where: str) -> None:
    if pipeline > work.num_layers:
        raise PlanError(
            f"pipeline_model_parallel_size {pipeline} exceeds num_layers {work.num_layers}",
            where=where,
            hint=f"at most {work.num_layers}: every stage needs a layer",
        )
    tensor = work.tensor or 1
    groups = sum(n.slots // tensor for n in nodes)
    if pipeline > groups:
        raise PlanError(
            f"pipeline_model_parallel_size {pipeline} with tensor_model_parallel_size {tensor} needs"
            f" {pipeline * tensor} ranks, there are {sum(n.slots for n in nodes)}",
            where=where,
            hint=f"at most {groups}, or {math.ceil(pipeline * tensor / max(n.slots for n in nodes))} nodes",
        )


def nothing_fits(work: TaskWork, nodes: Sequence[NodeSlots], previous: Layout | None) -> PlanError:
    """The error for a demand whose only remaining obstacle is memory."""
    slots = max(n.slots for n in nodes)
    fixed = work.pipeline if previous is None else None
    nearest: tuple[int, int, int] | None = None
    for tensor in degrees(work, nodes, previous):
        size = min(sizes(work, previous))
        depths = _table(work, tensor, size, slots, work.hardware.memory_bytes)
        for depth in (k + 1 for k, t in enumerate(depths.through) if math.isfinite(t)):
            need = math.ceil(depth / (slots // tensor))
            if nearest is None or need < nearest[0]:
                nearest = (need, depth, tensor)
    limit = work.hardware.memory_bytes * MEMORY_SHARE / 1e9
    message = (
        f"memory: no layout of {work.num_layers} layers on {len(nodes)} nodes of {slots} ranks stays within"
        f" {limit:.3g} GB a rank"
    )
    where = f"task '{work.name}'"
    if nearest is not None and fixed is not None:
        _, depth, tensor = nearest
        return PlanError(
            f"{message} with pipeline_model_parallel_size {fixed}",
            where=where,
            hint=f"pipeline_model_parallel_size {depth} with tensor_model_parallel_size {tensor} would fit",
        )
    if nearest is not None:
        need, depth, tensor = nearest
        return PlanError(
            message,
            where=where,
            hint=f"{need} nodes would do: tensor_model_parallel_size {tensor}, {depth} stages",
        )
    least = _least_memory(work, nodes, previous)
    return PlanError(message, where=where, hint=f"{least:.3g} GB a rank would do")


def _table(work: TaskWork, tensor: int, size: int, slots: int, memory: float) -> Depths:
    costs = stage_costs(work, tensor, size, slots)
    return Depths(
        replace(costs, memory=memory * MEMORY_SHARE),
        work.num_layers,
        tied=work.tied,
        deepest=work.num_layers,
        micro_batches=work.global_batch_size // size,
        groups_per_node=max(slots // tensor, 1),
    )


def _least_memory(work: TaskWork, nodes: Sequence[NodeSlots], previous: Layout | None) -> float:
    """Gigabytes per rank with which some layout would fit, to three figures, by bisection."""
    slots = max(n.slots for n in nodes)
    tensor, size = max(degrees(work, nodes, previous)), min(sizes(work, previous))
    low, high = work.hardware.memory_bytes, work.hardware.memory_bytes
    while not any(math.isfinite(t) for t in _table(work, tensor, size, slots, high).through):
        low, high = high, 2 * high
    while high - low > 0.002 * high:
        middle = (low + high) / 2
        fits = any(math.isfinite(t) for t in _table(work, tensor, size, slots, middle).through)
        low, high = (low, middle) if fits else (middle, high)
    return high / 1e9

"""Whether the runtime can execute a layout: the rules that Megatron asserts inside ranks, checked before."""

from __future__ import annotations

from collections.abc import Iterator

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.layout import Layout, Replica
from unicron_hpc.planner.work import TaskWork


def faults(layout: Layout, work: TaskWork) -> Iterator[str]:
    """Every rule that `layout` breaks, in words."""
    if layout.num_layers != work.num_layers:
        yield f"the layout is for {layout.num_layers} layers, the model has {work.num_layers}"
    if not layout.replicas:
        yield "there is no replica"
    seen: list[int] = []
    batch = 0
    for r, replica in enumerate(layout.replicas):
        yield from _replica_faults(layout, r, replica)
        seen.extend(rank for stage in replica.stages for rank in stage.ranks)
        if replica.first_micro_batch != batch or replica.micro_batches < 1:
            yield (
                f"replica {r} has micro-batches {replica.first_micro_batch} + {replica.micro_batches},"
                f" expected at least one from {batch}"
            )
        batch = replica.first_micro_batch + replica.micro_batches
    if layout.micro_batch_size < 1 or batch * layout.micro_batch_size != work.global_batch_size:
        yield (
            f"{batch} micro-batches of {layout.micro_batch_size} are not the global batch of"
            f" {work.global_batch_size}"
        )
    if sorted(seen) != list(range(layout.world_size)):
        yield f"the stages name {len(seen)} ranks, not each of the {layout.world_size} exactly once"
    if len(set(layout.seats)) != len(layout.seats):
        yield "two ranks share a seat"
    for argument, value in (
        ("num_attention_heads", work.num_attention_heads),
        ("num_query_groups", work.num_query_groups or work.num_attention_heads),
        ("ffn_hidden_size", work.ffn),
        ("vocab_size", work.vocab_size),
    ):
        if layout.tensor < 1 or value % layout.tensor:
            yield f"tensor degree {layout.tensor} does not divide {argument} {value}"


def _replica_faults(layout: Layout, r: int, replica: Replica) -> Iterator[str]:
    # One embedding and one head: layers run from 0 to the last without gap or overlap.
    layer = 0
    for s, stage in enumerate(replica.stages):
        if stage.first != layer or stage.num_layers < 1:
            yield (
                f"replica {r} stage {s} holds layers {stage.first} to {stage.last},"
                f" expected at least one from {layer}"
            )
        layer = stage.last + 1
        if len(stage.ranks) != layout.tensor:
            yield f"replica {r} stage {s} has {len(stage.ranks)} ranks, the tensor degree is {layout.tensor}"
        if len({layout.seats[k].node for k in stage.ranks if 0 <= k < layout.world_size}) > 1:
            yield f"replica {r} stage {s} spreads its tensor group over several nodes"
    if layer != layout.num_layers:
        yield f"replica {r} ends at layer {layer - 1} of {layout.num_layers}"


def check(layout: Layout, work: TaskWork) -> None:
    """Refuse a layout that the runtime cannot execute, before any rank starts.

    Raises
    ------
    PlanError
        Naming every broken rule.
    """
    found = list(faults(layout, work))
    if found:
        raise PlanError(
            "illegal layout: " + "; ".join(found),
            where=f"task '{work.name}'",
            hint="this is a fault of the planner or of a hand-made layout; nothing was started",
        )

"""What a search may vary: tensor degree and micro-batch size, as far as they are not fixed."""

from __future__ import annotations

from collections.abc import Sequence

from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.work import NodeSlots, TaskWork


def degrees(work: TaskWork, nodes: Sequence[NodeSlots], previous: Layout | None) -> list[int]:
    """Tensor degrees to try: the running one, the user's, else all that divide heads and fit in a node."""
    if previous is not None:
        return [previous.tensor]
    if work.tensor is not None:
        return [work.tensor]
    widest = max(n.slots for n in nodes)
    groups = work.num_query_groups or work.num_attention_heads
    return [
        t
        for t in range(1, widest + 1)
        if work.num_attention_heads % t == 0
        and groups % t == 0
        and work.ffn % t == 0
        and work.vocab_size % t == 0
        and work.vocab_size % t == 0
    ]


def sizes(work: TaskWork, previous: Layout | None) -> list[int]:
    """Micro-batch sizes to try: the running one, the user's, else powers of two that divide the batch."""
    if previous is not None:
        return [previous.micro_batch_size]
    if work.micro_batch_size is not None:
        return [work.micro_batch_size]
    return [b for b in (1, 2, 4, 8, 16) if work.global_batch_size % b == 0]

"""Every layout there is, for cases small enough to try them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, permutations

from unicron_hpc.planner.cost import Prediction, predict
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.planner.work import NodeSlots, TaskWork


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ways to write `total` as an ordered sum of `parts` positive numbers."""
    if parts == 1:
        if total >= 1:
            yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def build(
    work: TaskWork,
    pipes: Sequence[tuple[int, ...]],
    share: Sequence[int],
    nodes: Sequence[NodeSlots],
    tensor: int = 1,
    size: int | None = None,
) -> Layout:
    """The layout whose replicas have these layer counts and micro-batches, seats filled node by node."""
    free = [(n.name, b) for n in nodes for b in range(n.slots // tensor)]
    seats: list[Seat] = []
    replicas: list[Replica] = []
    group = batch = 0
    for counts, m in zip(pipes, share, strict=True):
        layer, stages = 0, []
        for n in counts:
            name, block = free[group]
            stages.append(Stage(layer, layer + n - 1, tuple(range(group * tensor, group * tensor + tensor))))
            seats.extend(Seat(name, block * tensor + k) for k in range(tensor))
            layer, group = layer + n, group + 1
        replicas.append(Replica(tuple(stages), batch, m))
        batch += m
    micro = size or work.micro_batch_size
    assert micro is not None
    return Layout(work.num_layers, tensor, micro, tuple(replicas), tuple(seats))


def all_layouts(work: TaskWork, nodes: Sequence[NodeSlots]) -> Iterator[tuple[Layout, Prediction]]:
    """Every layout on nodes of one slot that fits in memory."""
    assert work.micro_batch_size is not None
    slowdown = {node.name: node.slowdown for node in nodes}
    # Nodes of one speed are the same node.
    orders = {tuple(n.slowdown for n in order): order for order in permutations(nodes)}
    micro_batches = work.global_batch_size // work.micro_batch_size
    kinds = [c for p in range(1, work.num_layers + 1) for c in compositions(work.num_layers, p)]
    for number in range(1, len(nodes) + 1):
        for pipes in combinations_with_replacement(kinds, number):
            if sum(map(len, pipes)) > len(nodes) or number > micro_batches:
                continue
            for share in compositions(micro_batches, number):
                for order in orders.values():
                    layout = build(work, pipes, share, order)
                    found = predict(layout, work, slowdown)
                    if found.memory_bytes <= found.memory_limit:
                        yield layout, found

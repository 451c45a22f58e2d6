"""What stays fixed while one tensor degree and micro-batch size are searched."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from unicron_hpc.planner.candidate import Candidate, Pipe
from unicron_hpc.planner.cost import (
    Number,
    StageCosts,
    most_parameters,
    on_shared_host,
    pipeline_parameters,
    stage_costs,
    sync_seconds,
)
from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.partition import FloatArray
from unicron_hpc.planner.replicas import Mix, shares
from unicron_hpc.planner.work import NodeSlots, TaskWork


class Bench(msgspec.Struct, frozen=True):
    """The nodes as tensor groups of one degree, fastest first.

    Attributes
    ----------
    places
        (node, block) of each group; block b takes the slots b * tensor .. of the node.
    slowdown
        Factor of each group.
    per_node
        Groups of the smallest node.
    slots
        Ranks that share a node's network.
    nodes
        Number of nodes with at least one group.
    """

    places: tuple[tuple[str, int], ...]
    slowdown: tuple[float, ...]
    per_node: int
    slots: int
    nodes: int


def bench(nodes: Sequence[NodeSlots], tensor: int) -> Bench:
    """Cut every node into groups of `tensor` ranks; a group never spans two nodes."""
    usable = sorted((n for n in nodes if n.slots >= tensor), key=lambda n: n.slowdown)
    places = tuple([(n.name, block) for n in usable for block in range(n.slots // tensor)])
    slowdown = tuple([n.slowdown for n in usable for _ in range(n.slots // tensor)])
    per_node = min((n.slots // tensor for n in usable), default=1)
    return Bench(places, slowdown, per_node, max((n.slots for n in usable), default=1), len(usable))


class Scope(msgspec.Struct, frozen=True):
    """One tensor degree and micro-batch size on given nodes."""

    work: TaskWork
    tensor: int
    size: int
    micro_batches: int
    bench: Bench
    costs: StageCosts

    def depths(
        self, slowdown: float = 1.0, cap: float | FloatArray = math.inf, flight: int | None = None
    ) -> Depths:
        """Table of pipelines on nodes of one speed.

        No rank has more than `cap` parameters (by depth), no stage more than `flight` micro-batches at once.
        """
        return Depths(
            self.costs,
            self.work.num_layers,
            tied=self.work.tied,
            deepest=len(self.bench.places),
            micro_batches=self.micro_batches if flight is None else flight,
            groups_per_node=self.bench.per_node,
            groups=len(self.bench.places),
            most_replicas=self.micro_batches,
            slowdown=slowdown,
            parameter_cap=cap,
        )

    def sync(self, parameters: Number, replicas: Number) -> Number:
        """Seconds after the last micro-batch."""
        return sync_seconds(self.work, parameters, replicas, self.bench.slots, self.bench.nodes)

    def candidate(self, kinds: Sequence[tuple[Pipe, int]], most: Sequence[int] | None = None) -> Candidate:
        """The replicas with their shares, at most `most` by kind, and the expected seconds."""
        share = shares(
            [pipe.through for pipe, _ in kinds],
            [pipe.each for pipe, _ in kinds],
            [number for _, number in kinds],
            self.micro_batches,
            most,
        )
        seconds = max(
            pipe.through + (max(m) - 1) * pipe.each for (pipe, _), m in zip(kinds, share, strict=True)
        )
        fullest = max(most_parameters(pipe.counts, self.work, self.costs) for pipe, _ in kinds)
        replicas = sum(number for _, number in kinds)
        sync = float(self.sync(fullest, replicas))
        if self.work.hardware.host_cores is not None:
            seconds, sync = self._shared(kinds, share, seconds, sync, replicas)
        return Candidate(
            tensor=self.tensor,
            micro_batch_size=self.size,
            micro_batches=self.micro_batches,
            kinds=tuple(kinds),
            shares=tuple(share),
            parameters=fullest,
            seconds=seconds + sync,
        )

    def _shared(
        self,
        kinds: Sequence[tuple[Pipe, int]],
        share: Sequence[Sequence[int]],
        seconds: float,
        sync: float,
        replicas: int,
    ) -> tuple[float, float]:
        """(pipeline, sync) seconds on a host whose cores all ranks share."""
        costs = self.costs
        flat = self.work.num_layers * costs.layer + costs.first + costs.last
        link = costs.link_inter if self.bench.nodes > 1 else costs.link_intra
        busy = held = 0.0
        ranks = 0
        for (pipe, number), m in zip(kinds, share, strict=True):
            depth = len(pipe.counts)
            busy += sum(m) * (flat + depth * costs.stage + (depth - 1) * link)
            held += number * pipeline_parameters(self.work, costs, depth)
            ranks += number * depth
        mean = float(self.sync(held / ranks, replicas))
        return on_shared_host(
            self.work, ranks * self.tensor, seconds, busy * self.tensor, sync, mean * ranks * self.tensor
        )


def scope(work: TaskWork, tensor: int, size: int, cut: Bench) -> Scope:
    """The scope of a degree and a micro-batch size."""
    costs = stage_costs(work, tensor, size, cut.slots)
    return Scope(work, tensor, size, work.global_batch_size // size, cut, costs)


def kinds_of(depths: Depths, mix: Mix) -> list[tuple[Pipe, int]]:
    """The replicas of a mix."""
    return [
        (Pipe(depths.counts(p), float(depths.through[p - 1]), float(depths.each[p - 1])), number)
        for p, number in mix
    ]

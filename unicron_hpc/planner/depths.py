"""What a pipeline of each depth costs on equal nodes: fill, seconds per micro-batch, layers per stage."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from unicron_hpc.planner.cost import StageCosts
from unicron_hpc.planner.partition import EPSILON, FloatArray, IntArray, slowest_stage, split_layers


class Depths:
    """Pipelines of 1 .. `deepest` stages on nodes of one speed, each with its best partition.

    Parameters
    ----------
    costs
        Costs of the pieces of a stage.
    num_layers, tied
        Of the model; with tied weights a pipeline of one stage holds the word embedding once.
    deepest
        Largest depth considered.
    micro_batches
        Micro-batches of the global batch: no stage has more in flight.
    groups_per_node
        Tensor groups that a node takes: a pipeline that tiles a node never leaves it.
    groups, most_replicas
        Tensor groups at hand, and most replicas: with a distributed optimizer, depth p is judged as though
        groups / p replicas shared its state.
    slowdown
        Factor on compute of these nodes.
    parameter_cap
        Most parameters that a rank may hold (keeps gradient sums short), one number or one for each depth;
        infinite for no limit.
    """

    def __init__(
        self,
        costs: StageCosts,
        num_layers: int,
        *,
        tied: bool,
        deepest: int,
        micro_batches: int,
        groups_per_node: int,
        groups: int = 1,
        most_replicas: int = 1,
        slowdown: float = 1.0,
        parameter_cap: float | FloatArray = math.inf,
    ) -> None:
        self.costs, self.num_layers, self.tied, self.slowdown = costs, num_layers, tied, slowdown
        self.micro_batches, self.parameter_cap = micro_batches, parameter_cap
        self.groups_per_node, self.groups, self.most_replicas = groups_per_node, groups, most_replicas
        count = min(deepest, num_layers)
        depth = np.arange(1, count + 1)
        self.links = np.array([self.link(int(p)) for p in depth])
        slowest = slowest_stage(num_layers, costs.layer, costs.first, costs.last, self._most(count))
        whole = slowdown * (num_layers * costs.layer + costs.first + costs.last + depth * costs.stage)
        #: Seconds of one micro-batch through all stages, index depth - 1; infinite where it does not fit.
        self.through: FloatArray = np.where(np.isfinite(slowest), whole + (depth - 1) * self.links, np.inf)
        #: Seconds that every further micro-batch adds, index depth - 1.
        self.each: FloatArray = slowdown * (slowest + costs.stage) + self.links
        self._counts: dict[int, tuple[int, ...]] = {}

    def link(self, depth: int) -> float:
        """Seconds per micro-batch of a stage boundary in a pipeline of `depth` stages."""
        if depth == 1:
            return 0.0
        return self.costs.link_intra if self.groups_per_node % depth == 0 else self.costs.link_inter

    def _most(self, count: int) -> IntArray:
        """Most layers per (depth, stage) under memory limit and parameter cap, shape (count, count)."""
        stage = np.arange(count)
        depth = np.arange(1, count + 1)[:, None]
        flight = np.minimum(depth - stage, self.micro_batches)
        extra, active = self._extras(count)
        replicas = np.maximum(np.minimum(self.groups // depth, self.most_replicas), 1)
        state = self.costs.state_among(replicas)
        room = self.costs.memory - extra * state - active
        per_layer = self.costs.layer_parameters * state + flight * self.costs.layer_activation
        most = np.floor(room / np.maximum(per_layer, 1e-30) + EPSILON)
        cap = np.broadcast_to(np.asarray(self.parameter_cap, dtype=np.float64), (count,))[:, None]
        if np.isfinite(cap).any():
            most = np.minimum(most, np.floor((cap - extra) / self.costs.layer_parameters + EPSILON))
        most = np.clip(most, 0, self.num_layers)
        return np.where(stage < depth, most, 0).astype(np.int64)

    def _extras(self, count: int) -> tuple[FloatArray, FloatArray]:
        """(parameters, activation bytes) that each (depth, stage) carries beside its layers."""
        at = np.arange(count)
        extra = np.zeros((count, count))
        active = np.zeros((count, count))
        extra[:, 0] += self.costs.first_parameters
        extra[at, at] += self.costs.last_parameters
        if self.tied:
            extra[0, 0] -= self.costs.last_parameters
        active[at, at] += self.costs.last_activation
        return extra, active

    @cached_property
    def least_parameters(self) -> FloatArray:
        """Parameters of the fullest rank in the partition that keeps them lowest, index depth - 1."""
        return self._least_parameters(self.most)

    def least_parameters_at(self, each: FloatArray) -> FloatArray:
        """The same among partitions whose seconds per micro-batch do not exceed `each` (by depth)."""
        extra = np.full((len(each), len(each)), self.costs.stage)
        extra[:, 0] += self.costs.first
        at = np.arange(len(each))
        extra[at, at] += self.costs.last
        finite = np.where(np.isfinite(each), each - self.links, 0.0)[:, None]
        room = np.floor((finite / self.slowdown - extra) / self.costs.layer * (1 + EPSILON) + EPSILON)
        return self._least_parameters(np.minimum(self.most, np.maximum(room, 0)).astype(np.int64))

    def _least_parameters(self, most: IntArray) -> FloatArray:
        costs = self.costs
        least = slowest_stage(
            self.num_layers,
            costs.layer_parameters,
            costs.first_parameters,
            costs.last_parameters,
            most,
        )
        if self.tied and np.isfinite(least[0]):
            least[0] -= costs.last_parameters
        return np.where(np.isfinite(self.through), least, np.inf)

    def counts(self, depth: int) -> tuple[int, ...]:
        """Layers per stage of the best partition into `depth` stages."""
        if depth not in self._counts:
            found = self.mixed((self.slowdown,) * depth)
            if found is None:
                raise ValueError(f"no partition into {depth} stages")
            self._counts[depth] = found[0]
        return self._counts[depth]

    def mixed(self, slowdown: tuple[float, ...]) -> tuple[tuple[int, ...], float, float] | None:
        """Best partition over stages of different speed: (layers per stage, `through`, `each`)."""
        depth, costs = len(slowdown), self.costs
        extra = [costs.stage] * depth
        extra[0] += costs.first
        extra[-1] += costs.last
        most = [int(m) for m in self.most[depth - 1, :depth]]
        counts = split_layers(self.num_layers, costs.layer, extra, slowdown=slowdown, most=most)
        if counts is None:
            return None
        times = [f * (n * costs.layer + e) for f, n, e in zip(slowdown, counts, extra, strict=True)]
        link = self.link(depth)
        return counts, sum(times) + (depth - 1) * link, max(times) + link

    @cached_property
    def most(self) -> IntArray:
        """Most layers that memory and the parameter cap allow, by (depth - 1, stage)."""
        return self._most(len(self.through))

"""Search inside a task: the fastest layout for the nodes at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from unicron_hpc.planner import limits
from unicron_hpc.planner.cost import Prediction, StageCosts, predict, stage_costs, sync_seconds
from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.planner.mixed import fastest_segments
from unicron_hpc.planner.options import degrees, sizes
from unicron_hpc.planner.partition import EPSILON
from unicron_hpc.planner.replicas import Mix, fastest_mix, homogeneous, lower_bound, shares
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Up to this many groups every number of replicas and every parameter cap is tried, beyond only the likely
#: ones.
EXHAUSTIVE_GROUPS = 24
#: As for EXHAUSTIVE_GROUPS, in layers.
EXHAUSTIVE_LAYERS = 48


class Pipe(msgspec.Struct, frozen=True):
    """One replica before it has seats: layers per stage, seconds to fill, seconds per further micro-batch."""

    counts: tuple[int, ...]
    through: float
    each: float


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the task, and what is expected of it.

    Attributes
    ----------
    tensor, micro_batch_size, micro_batches
        Degree, sequences per micro-batch, micro-batches of the global batch.
    pipes, share
        The replicas in the order of the groups they take, and the micro-batches of each.
    seconds
        One iteration.
    """

    tensor: int
    micro_batch_size: int
    micro_batches: int
    pipes: tuple[Pipe, ...]
    share: tuple[int, ...]
    seconds: float

    @property
    def groups(self) -> int:
        return sum(len(pipe.counts) for pipe in self.pipes)

    def describe(self) -> str:
        """In words: `tensor 1, 2 x 4 stages + 1 x 3 stages`."""
        number: dict[int, int] = {}
        for pipe in self.pipes:
            number[len(pipe.counts)] = number.get(len(pipe.counts), 0) + 1
        parts = [f"{n} x {p} stage{'s' if p > 1 else ''}" for p, n in sorted(number.items(), reverse=True)]
        return f"tensor {self.tensor}, micro-batch {self.micro_batch_size}, " + " + ".join(parts)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search.

    Attributes
    ----------
    layout, prediction
        The best layout and what is expected of it.
    candidate
        The same before it got seats.
    runners_up
        Other candidates, fastest first.
    idle_nodes
        Nodes without a seat.
    """

    layout: Layout
    prediction: Prediction
    candidate: Candidate
    runners_up: tuple[Candidate, ...]
    idle_nodes: tuple[str, ...]


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
    places = tuple((n.name, block) for n in usable for block in range(n.slots // tensor))
    slowdown = tuple(n.slowdown for n in usable for _ in range(n.slots // tensor))
    per_node = min((n.slots // tensor for n in usable), default=1)
    return Bench(places, slowdown, per_node, max((n.slots for n in usable), default=1), len(usable))


def seated(candidate: Candidate, places: Sequence[tuple[str, int]], num_layers: int) -> Layout:
    """The candidate on places, group by group."""
    tensor = candidate.tensor
    seats: list[Seat] = []
    replicas: list[Replica] = []
    group = batch = 0
    for pipe, share in zip(candidate.pipes, candidate.share, strict=True):
        stages: list[Stage] = []
        layer = 0
        for count in pipe.counts:
            node, block = places[group]
            stages.append(Stage(layer, layer + count - 1, tuple(range(group * tensor, (group + 1) * tensor))))
            seats.extend(Seat(node, block * tensor + k) for k in range(tensor))
            layer, group = layer + count, group + 1
        replicas.append(Replica(tuple(stages), batch, share))
        batch += share
    return Layout(num_layers, tensor, candidate.micro_batch_size, tuple(replicas), tuple(seats))


class _Scope(msgspec.Struct, frozen=True):
    """What stays fixed while one tensor degree and micro-batch size are searched."""

    work: TaskWork
    tensor: int
    size: int
    micro_batches: int
    bench: Bench
    costs: StageCosts

    def depths(self, slowdown: float = 1.0, cap: float = math.inf) -> Depths:
        return Depths(
            self.costs,
            self.work.num_layers,
            tied=self.work.tied,
            deepest=len(self.bench.places),
            micro_batches=self.micro_batches,
            groups_per_node=self.bench.per_node,
            slowdown=slowdown,
            parameter_cap=cap,
        )

    def sync(self, rank_parameters: float, replicas: int) -> float:
        return sync_seconds(self.work, rank_parameters, replicas, self.bench.slots, self.bench.nodes)

    def candidate(self, pipes: Sequence[Pipe], share: Sequence[int] | None = None) -> Candidate:
        """The pipes with their shares and the expected seconds."""
        costs = self.costs
        if share is None:
            share = shares([p.through for p in pipes], [p.each for p in pipes], self.micro_batches)
        seconds = max(p.through + (m - 1) * p.each for p, m in zip(pipes, share, strict=True))
        most = 0.0
        for counts in {p.counts for p in pipes}:
            extra = [0.0] * len(counts)
            extra[0] += costs.first_parameters
            extra[-1] += costs.last_parameters if len(counts) > 1 or not self.work.tied else 0.0
            most = max(most, *(n * costs.layer_parameters + e for n, e in zip(counts, extra, strict=True)))
        cores = self.work.hardware.host_cores
        if cores is not None:
            flat = self.work.num_layers * costs.layer + costs.first + costs.last
            stages = sum(m * len(p.counts) for p, m in zip(pipes, share, strict=True))
            seconds = max(seconds, self.tensor * (flat * self.micro_batches + stages * costs.stage) / cores)
        return Candidate(
            tensor=self.tensor,
            micro_batch_size=self.size,
            micro_batches=self.micro_batches,
            pipes=tuple(pipes),
            share=tuple(share),
            seconds=seconds + self.sync(most, len(pipes)),
        )


def _pipes(depths: Depths, mix: Mix) -> list[Pipe]:
    return [
        Pipe(depths.counts(p), float(depths.through[p - 1]), float(depths.each[p - 1]))
        for p, number in mix
        for _ in range(number)
    ]


def _equal_nodes(scope: _Scope, best: float) -> list[Candidate]:
    """Candidates on nodes of one speed; the fastest of all is among them unless `best` beats it."""
    groups, micro_batches = len(scope.bench.places), scope.micro_batches
    free = scope.depths(scope.bench.slowdown[0])
    number, seconds = homogeneous(free.through, free.each, groups, micro_batches)
    found: list[Candidate] = []
    finite = [k for k in seconds.argsort(kind="stable") if math.isfinite(seconds[k])]
    for k in finite[:8]:
        found.append(scope.candidate(_pipes(free, ((int(k) + 1, int(number[k])),))))
    if not found:
        return []
    best = min(best, min(c.seconds for c in found))
    small = groups <= EXHAUSTIVE_GROUPS and scope.work.num_layers <= EXHAUSTIVE_LAYERS
    for cap in _caps(scope, free, small):
        depths = free if math.isinf(cap) else scope.depths(scope.bench.slowdown[0], cap)
        bound = lower_bound(depths.through, depths.each, groups, micro_batches)
        if not math.isfinite(bound):
            break
        least = float(depths.smallest_state.min()) if math.isinf(cap) else cap
        numbers = range(1, min(groups, micro_batches) + 1) if small else [None]
        for replicas in numbers:
            if bound + scope.sync(least, replicas or 1) >= best * (1 - EPSILON):
                break
            mix = fastest_mix(depths.through, depths.each, groups, micro_batches, replicas=replicas)
            if mix is not None:
                found.append(scope.candidate(_pipes(depths, mix[1])))
                best = min(best, found[-1].seconds)
    return found


def _caps(scope: _Scope, free: Depths, small: bool) -> list[float]:
    """Limits on a rank's parameters worth trying: tighter ones shorten the gradient sum, not the pipeline."""
    costs = scope.costs
    if not small:
        values = {float(v) for v in free.smallest_state if math.isfinite(v)}
    else:
        ends = (
            0.0,
            costs.first_parameters,
            costs.last_parameters,
            costs.first_parameters + costs.last_parameters,
        )
        values = {k * costs.layer_parameters + e for k in range(1, scope.work.num_layers + 1) for e in ends}
    return [math.inf, *sorted(values, reverse=True)]


def _fixed_pipeline(scope: _Scope, depth: int) -> list[Candidate]:
    """All replicas of the depth that the user asked for, as many as the groups allow."""
    depths = scope.depths(max(scope.bench.slowdown))
    number = min(len(scope.bench.places) // depth, scope.micro_batches)
    if number < 1 or depth > len(depths.through) or not math.isfinite(depths.through[depth - 1]):
        return []
    return [scope.candidate(_pipes(depths, ((depth, number),)))]


def _unequal_nodes(scope: _Scope) -> list[Candidate]:
    """Candidates where nodes differ in speed; groups are taken fastest first."""
    found = fastest_segments(scope.bench.slowdown, scope.depths, scope.micro_batches)
    return [scope.candidate([Pipe(*part) for part in pipes]) for pipes in found]


def _fast_only(scope: _Scope) -> _Scope:
    cut = scope.bench
    fast = sum(s == cut.slowdown[0] for s in cut.slowdown)
    places = cut.places[:fast]
    kept = Bench(places, cut.slowdown[:fast], cut.per_node, cut.slots, len({node for node, _ in places}))
    return msgspec.structs.replace(scope, bench=kept)


def search(work: TaskWork, nodes: Sequence[NodeSlots], *, previous: Layout | None = None) -> Choice:
    """The fastest layout by the cost model, and what it beat.

    Parameters
    ----------
    work
        The task.
    nodes
        Nodes that may be used, in the order in which they should be filled.
    previous
        The layout that runs now: its tensor degree and micro-batch size stay, its depths need not.

    Raises
    ------
    PlanError
        When no layout fits; names the binding constraint and the nearest demand that would fit.
    """
    limits.check_demand(work, nodes, previous)
    found: list[Candidate] = []
    best = math.inf
    for tensor in degrees(work, nodes, previous):
        cut = bench(nodes, tensor)
        if not cut.places:
            continue
        for size in sizes(work, previous):
            micro_batches = work.global_batch_size // size
            costs = stage_costs(work, tensor, size, cut.slots)
            scope = _Scope(work, tensor, size, micro_batches, cut, costs)
            if work.pipeline is not None and previous is None:
                found += _fixed_pipeline(scope, work.pipeline)
            elif cut.slowdown[0] == cut.slowdown[-1]:
                found += _equal_nodes(scope, best)
            else:
                found += _unequal_nodes(scope)
                # The fast nodes alone: never worse than leaving the slow ones out.
                found += _equal_nodes(_fast_only(scope), best)
            best = min((c.seconds for c in found), default=math.inf)
    if not found:
        raise limits.nothing_fits(work, nodes, previous)
    # Equal seconds: fewer groups, then the smaller degree, so that the answer never depends on the order
    # tried.
    found.sort(key=lambda c: (round(c.seconds, 12), c.groups, c.tensor, -c.micro_batch_size))
    chosen = found[0]
    layout = seated(chosen, bench(nodes, chosen.tensor).places, work.num_layers)
    used = {seat.node for seat in layout.seats}
    return Choice(
        layout=layout,
        prediction=predict(layout, work, {n.name: n.slowdown for n in nodes}),
        candidate=chosen,
        runners_up=_distinct(found[1:], chosen),
        idle_nodes=tuple(n.name for n in nodes if n.name not in used),
    )


def _distinct(others: Sequence[Candidate], chosen: Candidate) -> tuple[Candidate, ...]:
    """The first few that differ in what a person would call the layout."""
    seen = {chosen.describe()}
    kept: list[Candidate] = []
    for other in others:
        if other.describe() not in seen:
            seen.add(other.describe())
            kept.append(other)
    return tuple(kept[:8])


def best_layout(work: TaskWork, nodes: Sequence[NodeSlots], *, previous: Layout | None = None) -> Layout:
    """The fastest layout by the cost model (`search` tells more).

    Raises
    ------
    PlanError
        When no layout fits; names the binding constraint and the nearest demand that would fit.
    """
    return search(work, nodes, previous=previous).layout

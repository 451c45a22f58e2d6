"""Search inside a task: the fastest layout for the nodes at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from unicron_hpc.planner import limits
from unicron_hpc.planner.candidate import Candidate, seated
from unicron_hpc.planner.cost import Prediction, predict
from unicron_hpc.planner.equal import equal_nodes, least_seconds
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.mixed import unequal_nodes
from unicron_hpc.planner.options import degrees, sizes
from unicron_hpc.planner.scope import Scope, bench, kinds_of, scope
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Runners-up that are kept, to say why they lost.
RUNNERS_UP = 8


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


def _wished(part: Scope, depth: int) -> list[Candidate]:
    """All replicas of the depth that the user asks for, as many as the groups allow."""
    number = min(len(part.bench.places) // depth, part.micro_batches)
    if number < 1:
        return []
    depths = part.depths(part.bench.slowdown[number * depth - 1], flight=-(-part.micro_batches // number))
    if depth > len(depths.through) or not math.isfinite(depths.through[depth - 1]):
        return []
    return [part.candidate(kinds_of(depths, ((depth, number),)))]


def _as_wished(parts: Sequence[Scope], depth: int) -> tuple[list[Candidate], bool]:
    """(candidates of that depth, whether they are the answer).

    They are where nodes are alike and each has a seat. Else other layouts may be faster, and compete.
    """
    found = [candidate for part in parts for candidate in _wished(part, depth)]
    speeds = {speed for part in parts for speed in part.bench.slowdown}
    places = {part.tensor: len(part.bench.places) for part in parts}
    whole = [c for c in found if c.groups == places[c.tensor]]
    return (whole, True) if whole and len(speeds) == 1 else (found, False)


def candidates(work: TaskWork, nodes: Sequence[NodeSlots], previous: Layout | None = None) -> list[Candidate]:
    """Ways to run the task on the nodes, fastest first.

    Raises
    ------
    PlanError
        When there is none; names the binding constraint and the nearest demand that would fit.
    """
    limits.check_demand(work, nodes, previous)
    parts = [
        scope(work, tensor, size, cut)
        for tensor in degrees(work, nodes, previous)
        for cut in [bench(nodes, tensor)]
        if cut.places
        for size in sizes(work, previous)
    ]
    found: list[Candidate] = []
    if work.pipeline is not None and previous is None:
        found, enough = _as_wished(parts, work.pipeline)
        if enough or not found:
            parts = []
    best = min((c.seconds for c in found), default=math.inf)
    # The most promising first: what they reach rules most others out by their bound alone.
    bounds = [least_seconds(part) for part in parts]
    for k in sorted(range(len(parts)), key=lambda k: bounds[k]):
        part = parts[k]
        if bounds[k] >= best:
            continue
        if part.bench.slowdown[0] == part.bench.slowdown[-1]:
            found += equal_nodes(part, best)
        else:
            found += unequal_nodes(part, best)
        best = min((c.seconds for c in found), default=math.inf)
    if not found:
        raise limits.nothing_fits(work, nodes, previous)
    # Equal seconds: fewer groups, then the smaller degree; the answer never depends on the order tried.
    return sorted(found, key=lambda c: (round(c.seconds, 12), c.groups, c.tensor, -c.micro_batch_size))


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
    found = candidates(work, nodes, previous)
    slowdown = {n.name: n.slowdown for n in nodes}
    while found:
        chosen = found[0]
        layout = seated(chosen, bench(nodes, chosen.tensor).places, work.num_layers)
        prediction = predict(layout, work, slowdown)
        # With a distributed optimizer, memory depends on the number of replicas that the mix ended up with.
        if not work.distributed_optimizer or prediction.memory_bytes <= prediction.memory_limit:
            break
        del found[0]
    else:
        raise limits.nothing_fits(work, nodes, previous)
    used = {seat.node for seat in layout.seats}
    return Choice(
        layout=layout,
        prediction=prediction,
        candidate=chosen,
        runners_up=_distinct(found),
        idle_nodes=tuple(n.name for n in nodes if n.name not in used),
    )


def _distinct(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first few after the best that differ in what a person would call the layout."""
    seen = {found[0].describe()}
    kept: list[Candidate] = []
    for other in found[1:]:
        if other.describe() not in seen:
            seen.add(other.describe())
            kept.append(other)
    return tuple(kept[:RUNNERS_UP])


def best_layout(work: TaskWork, nodes: Sequence[NodeSlots], *, previous: Layout | None = None) -> Layout:
    """The fastest layout by the cost model (`search` tells more).

    Raises
    ------
    PlanError
        When no layout fits; names the binding constraint and the nearest demand that would fit.
    """
    return search(work, nodes, previous=previous).layout

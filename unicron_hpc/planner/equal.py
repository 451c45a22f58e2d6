"""Search on nodes of one speed: every set of replicas, bounded so that few have to be looked at."""

from __future__ import annotations

import math

import numpy as np

from unicron_hpc.planner.candidate import Candidate
from unicron_hpc.planner.cost import most_parameters
from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.exhaustive import exhaustive
from unicron_hpc.planner.partition import EPSILON
from unicron_hpc.planner.replicas import Mix, Options, fastest_mix, lower_bound
from unicron_hpc.planner.scope import Scope, kinds_of

#: Up to this many groups every number of replicas and every parameter cap is tried: the answer is exact.
#: Beyond, the number of replicas is tried for equal depths only, and mixed depths take as many as help.
EXHAUSTIVE_GROUPS = 16
#: As for EXHAUSTIVE_GROUPS, in layers.
EXHAUSTIVE_LAYERS = 48
#: Sets of equal replicas worked out per scope.
EQUAL_SETS = 6


def bound(scope: Scope, depths: Depths) -> float:
    """Seconds that no set of replicas from a table can beat."""
    groups = len(scope.bench.places)
    pipeline = lower_bound(depths.through, depths.each, groups, scope.micro_batches)
    if not math.isfinite(pipeline):
        return math.inf
    return pipeline + float(scope.sync(depths.least_parameters.min(), 1))


def least_seconds(scope: Scope) -> float:
    """Seconds that nothing in this scope can beat."""
    return bound(scope, scope.depths(scope.bench.slowdown[0], flight=1 if is_small(scope) else None))


def is_small(scope: Scope) -> bool:
    """Whether everything is tried."""
    return len(scope.bench.places) <= EXHAUSTIVE_GROUPS and scope.work.num_layers <= EXHAUSTIVE_LAYERS


def equal_nodes(scope: Scope, best: float) -> list[Candidate]:
    """Candidates; the fastest of all is among them unless `best` beats it."""
    if least_seconds(scope) >= best * (1 - EPSILON):
        return []
    # Free: the fastest pipelines. Even: those that keep the fullest rank, and so the gradient sum, smallest.
    free = scope.depths(scope.bench.slowdown[0])
    even = scope.depths(scope.bench.slowdown[0], free.least_parameters)
    found = [scope.candidate(kinds_of(free, mix)) for mix in _equal_sets(scope, free)]
    found += [scope.candidate(kinds_of(even, mix)) for mix in _equal_sets(scope, even)]
    best = min(best, min((c.seconds for c in found), default=math.inf))
    if is_small(scope):
        return found + exhaustive(scope, best)
    found += _likely(scope, free, best)
    return found + _short_shares(scope, free, min([best, *(c.seconds for c in found)]))


def _equal_sets(scope: Scope, free: Depths) -> list[Mix]:
    """The best sets of replicas of one depth, any number of them."""
    groups, micro_batches = len(scope.bench.places), scope.micro_batches
    found: list[tuple[float, Mix]] = []
    for k in np.flatnonzero(np.isfinite(free.through)).tolist():
        number = np.arange(1, min(groups // (k + 1), micro_batches) + 1)
        seconds = free.through[k] + (-(-micro_batches // number) - 1) * free.each[k]
        seconds = seconds + scope.sync(free.least_parameters[k], number)
        at = int(seconds.argmin())
        found.append((float(seconds[at]), ((k + 1, int(number[at])),)))
    return [mix for _, mix in sorted(found)[:EQUAL_SETS]]


def _likely(scope: Scope, free: Depths, best: float) -> list[Candidate]:
    """Mixed depths without a cap, and with the caps that the best equal sets suggest."""
    groups, micro_batches = len(scope.bench.places), scope.micro_batches
    caps = {math.inf}
    for ((depth, _),) in _equal_sets(scope, free):
        caps |= {
            most_parameters(free.counts(depth), scope.work, scope.costs),
            float(free.least_parameters[depth - 1]),
        }
    found: list[Candidate] = []
    for cap in sorted(caps, reverse=True):
        depths = free if math.isinf(cap) else scope.depths(scope.bench.slowdown[0], cap)
        if bound(scope, depths) >= best * (1 - EPSILON):
            continue
        options = Options(depths.through[None], depths.each[None], np.array([[micro_batches]]))
        mix = fastest_mix(options, groups, micro_batches)
        if mix is not None:
            found.append(scope.candidate(kinds_of(depths, mix[1])))
            best = min(best, found[-1].seconds)
    return found


def _short_shares(scope: Scope, free: Depths, best: float) -> list[Candidate]:
    """Replicas with so few micro-batches in flight that a stage takes more layers, beside others."""
    groups, micro_batches = len(scope.bench.places), scope.micro_batches
    flights = [micro_batches]
    tables = [free]
    flight = 1
    while flight < min(len(free.through), micro_batches):
        depths = scope.depths(scope.bench.slowdown[0], flight=flight)
        if np.array_equal(free.most, depths.most):
            break
        flights.insert(-1, flight)
        tables.insert(-1, depths)
        flight *= 2
    if len(tables) == 1 or min(bound(scope, depths) for depths in tables) >= best * (1 - EPSILON):
        return []
    through = np.stack([depths.through for depths in tables])
    each = np.stack([depths.each for depths in tables])
    mix = fastest_mix(Options(through, each, np.array(flights)[:, None]), groups, micro_batches)
    if mix is None:
        return []
    kinds = [kinds_of(tables[int(mix[2][p - 1])], ((p, number),))[0] for p, number in mix[1]]
    return [scope.candidate(kinds, [flights[int(mix[2][p - 1])] for p, _ in mix[1]])]

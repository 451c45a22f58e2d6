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
    found += exhaustive(scope, best) if is_small(scope) else _likely(scope, free, best)
    return found


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

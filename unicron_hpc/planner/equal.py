"""Search on nodes of one speed: every set of replicas, bounded so that few have to be looked at."""

from __future__ import annotations

import math

import numpy as np

from unicron_hpc.planner.candidate import Candidate
from unicron_hpc.planner.cost import most_parameters
from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.partition import EPSILON, FloatArray
from unicron_hpc.planner.replicas import Mix, fastest_mix, lower_bound
from unicron_hpc.planner.scope import Scope, kinds_of

#: Up to this many groups every number of replicas and every parameter cap is tried: the answer is exact.
#: Beyond, the number of replicas is tried for equal depths only, and mixed depths take as many as help.
EXHAUSTIVE_GROUPS = 24
#: As for EXHAUSTIVE_GROUPS, in layers.
EXHAUSTIVE_LAYERS = 48
#: Sets of equal replicas worked out per scope.
EQUAL_SETS = 6


def bound(scope: Scope, depths: Depths) -> float:
    """Seconds that no set of replicas in this scope can beat."""
    groups = len(scope.bench.places)
    pipeline = lower_bound(depths.through, depths.each, groups, scope.micro_batches)
    if not math.isfinite(pipeline):
        return math.inf
    return pipeline + float(scope.sync(depths.least_parameters.min(), 1))


def equal_nodes(scope: Scope, best: float) -> list[Candidate]:
    """Candidates; the fastest of all is among them unless `best` beats it."""
    free = scope.depths(scope.bench.slowdown[0])
    if bound(scope, free) >= best * (1 - EPSILON):
        return []
    # Free: the fastest pipelines. Even: those that keep the fullest rank, and so the gradient sum, smallest.
    even = scope.depths(scope.bench.slowdown[0], free.least_parameters)
    found = [scope.candidate(kinds_of(free, mix)) for mix in _equal_sets(scope, free)]
    found += [scope.candidate(kinds_of(even, mix)) for mix in _equal_sets(scope, even)]
    if not found:
        return []
    best = min(best, min(c.seconds for c in found))
    if len(scope.bench.places) <= EXHAUSTIVE_GROUPS and scope.work.num_layers <= EXHAUSTIVE_LAYERS:
        found += _exhaustive(scope, best)
    else:
        found += _likely(scope, free, best)
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


def _exhaustive(scope: Scope, best: float) -> list[Candidate]:
    """Every cap on a rank's parameters and every largest number of replicas, as far as bounds leave open."""
    groups, micro_batches = len(scope.bench.places), scope.micro_batches
    levels = _levels(scope)
    found: list[Candidate] = []
    for cap in sorted({float(q) for _, least in levels for q in least if math.isfinite(q)}, reverse=True):
        through, each, table = _under(levels, cap)
        whole = fastest_mix(through, each, groups, micro_batches)
        if whole is None:
            continue
        number = np.arange(1, min(groups, micro_batches) + 1)
        # With d replicas one of them has at least 1/d of the micro-batches.
        share = -(-micro_batches // number)
        fits = np.isfinite(through)
        alone = (through[fits] + (share[:, None] - 1) * each[fits]).min(axis=1)
        # Pipelines as fast as without any limit, and a gradient sum over so many replicas: no fewer seconds.
        least = np.maximum(alone, whole[0]) + scope.sync(cap, number)
        for k in np.argsort(least, kind="stable").tolist():
            if least[k] >= best * (1 - EPSILON):
                break
            mix = fastest_mix(through, each, groups, micro_batches, replicas=k + 1)
            if mix is not None:
                kinds = [kind for p, n in mix[1] for kind in kinds_of(levels[table[p - 1]][0], ((p, n),))]
                found.append(scope.candidate(kinds))
                best = min(best, found[-1].seconds)
    return found


def _levels(scope: Scope) -> list[tuple[Depths, FloatArray]]:
    """Per depth, all useful trades of pipeline speed for fewer parameters on the fullest rank.

    Level 0 has the fastest pipelines, each with as few parameters as that speed allows; every further level
    asks for fewer parameters than the level before. With each: the parameters of the fullest rank, by depth.
    """
    slowdown = scope.bench.slowdown[0]
    found: list[tuple[Depths, FloatArray]] = []
    cap: float | FloatArray = math.inf
    while True:
        fastest = scope.depths(slowdown, cap)
        if not np.isfinite(fastest.through).any():
            return found
        least = fastest.least_parameters_at(fastest.each)
        found.append((scope.depths(slowdown, least), least))
        cap = np.where(np.isfinite(least), least * (1 - 1e-6), 0.0)


def _under(levels: list[tuple[Depths, FloatArray]], cap: float) -> tuple[FloatArray, FloatArray, list[int]]:
    """For each depth the fastest pipeline with at most `cap` parameters: (through, each, its level)."""
    least = np.stack([least for _, least in levels])
    ok = least <= cap * (1 + EPSILON)
    level = ok.argmax(axis=0)
    at = np.arange(least.shape[1])
    through = np.stack([depths.through for depths, _ in levels])[level, at]
    each = np.stack([depths.each for depths, _ in levels])[level, at]
    fits = ok.any(axis=0)
    return np.where(fits, through, np.inf), np.where(fits, each, np.inf), [int(k) for k in level]


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
        mix = fastest_mix(depths.through, depths.each, groups, micro_batches)
        if mix is not None:
            found.append(scope.candidate(kinds_of(depths, mix[1])))
            best = min(best, found[-1].seconds)
    return found

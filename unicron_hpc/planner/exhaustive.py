"""Search on few equal nodes where everything is tried, as far as bounds leave it open: the answer is exact.

Beside depth and number, three things trade against each other inside a replica: the speed of its slowest
stage, the parameters of its fullest rank (they lengthen the gradient sum), and the micro-batches in flight
(their activations take memory from layers). Every useful trade is a level of a table; a search then takes
the best mix under every cap.
"""

from __future__ import annotations

import math

import numpy as np

from unicron_hpc.planner.candidate import Candidate, Pipe
from unicron_hpc.planner.depths import Depths
from unicron_hpc.planner.partition import EPSILON, FloatArray, IntArray
from unicron_hpc.planner.replicas import Mix, Options, fastest_mix
from unicron_hpc.planner.scope import Scope, kinds_of

#: Tables from fast pipelines to small parameters: (table, parameters of the fullest rank by depth).
Levels = list[tuple[Depths, FloatArray]]


def exhaustive(scope: Scope, best: float) -> list[Candidate]:
    """Every mix that beats `best` and all before it; the fastest of all comes last."""
    groups, micro_batches = len(scope.bench.places), scope.micro_batches
    ways = _ways(scope)
    caps = {float(q) for _, levels in ways for _, least in levels for q in least if math.isfinite(q)}
    number = np.arange(1, min(groups, micro_batches) + 1)
    share = -(-micro_batches // number)
    found: list[Candidate] = []
    for cap in sorted(caps, reverse=True):
        options, level = _under(ways, cap)
        whole = fastest_mix(options, groups, micro_batches)
        if whole is None:
            continue
        fits = np.isfinite(options.through)
        # With d replicas one of them has at least 1/d of the micro-batches.
        alone = (options.through[fits] + (share[:, None] - 1) * options.each[fits]).min(axis=1)
        # Pipelines as fast as without any limit, and a gradient sum over so many replicas: no fewer seconds.
        least = np.maximum(alone, whole[0]) + scope.sync(cap, number)
        for k in np.argsort(least, kind="stable").tolist():
            if least[k] >= best * (1 - EPSILON):
                break
            mix = fastest_mix(options, groups, micro_batches, replicas=k + 1)
            if mix is not None:
                kinds, most = _kinds(ways, level, mix[1], mix[2])
                found.append(scope.candidate(kinds, most))
                best = min(best, found[-1].seconds)
    return found


def _ways(scope: Scope) -> list[tuple[int, Levels]]:
    """(most micro-batches of a replica, levels), the last without a limit.

    Limits below the depth matter only where activations in flight decide what fits.
    """
    slowdown = scope.bench.slowdown[0]
    free, one = scope.depths(slowdown), scope.depths(slowdown, flight=1)
    ways: list[tuple[int, Levels]] = []
    if not np.array_equal(free.most, one.most):
        deepest = min(len(free.through), scope.micro_batches)
        ways = [(flight, _levels(scope, flight)) for flight in range(1, deepest)]
    return [*ways, (scope.micro_batches, _levels(scope, None))]


def _levels(scope: Scope, flight: int | None) -> Levels:
    """Level 0 has the fastest pipelines, with as few parameters as that allows; the next ones have fewer."""
    slowdown = scope.bench.slowdown[0]
    found: Levels = []
    cap: float | FloatArray = math.inf
    while True:
        fastest = scope.depths(slowdown, cap, flight)
        if not np.isfinite(fastest.through).any():
            return found
        least = fastest.least_parameters_at(fastest.each)
        found.append((scope.depths(slowdown, least, flight), least))
        cap = np.where(np.isfinite(least), least * (1 - 1e-6), 0.0)


def _under(ways: list[tuple[int, Levels]], cap: float) -> tuple[Options, list[IntArray]]:
    """The fastest pipelines with at most `cap` parameters, and of which level they are, by way and depth."""
    through: list[FloatArray] = []
    each: list[FloatArray] = []
    level: list[IntArray] = []
    for _, levels in ways:
        if not levels:
            empty = np.full_like(through[-1] if through else ways[-1][1][0][1], np.inf)
            through.append(empty)
            each.append(empty)
            level.append(np.zeros(len(empty), dtype=np.int64))
            continue
        least = np.stack([least for _, least in levels])
        ok = least <= cap * (1 + EPSILON)
        first: IntArray = ok.argmax(axis=0)
        at = np.arange(least.shape[1])
        fits = ok.any(axis=0)
        for name, into in (("through", through), ("each", each)):
            values = np.stack([getattr(depths, name) for depths, _ in levels])[first, at]
            into.append(np.where(fits, values, np.inf))
        level.append(first)
    most = np.array([[limit] for limit, _ in ways], dtype=np.int64)
    return Options(np.stack(through), np.stack(each), most), level


def _kinds(
    ways: list[tuple[int, Levels]], level: list[IntArray], mix: Mix, way: IntArray
) -> tuple[list[tuple[Pipe, int]], list[int]]:
    kinds: list[tuple[Pipe, int]] = []
    most: list[int] = []
    for depth, number in mix:
        limit, levels = ways[int(way[depth - 1])]
        depths = levels[int(level[int(way[depth - 1])][depth - 1])][0]
        kinds += kinds_of(depths, ((depth, number),))
        most.append(limit)
    return kinds, most

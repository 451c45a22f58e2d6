"""Exact partition of layers into pipeline stages: the slowest stage as fast as possible.

Transformer layers are alike, so a partition is a count of layers per stage. Stages differ in what they carry
on top (embedding, loss head), in how slow their node is, and in how many layers their memory takes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Relative slack in comparisons of times, far below what any measurement resolves.
EPSILON = 1e-9


def split_layers(
    num_layers: int, layer: float, extra: Sequence[float], *, slowdown: Sequence[float], most: Sequence[int]
) -> tuple[int, ...] | None:
    """Layers per stage, at least one each, that minimise the slowest stage.

    Every further layer goes to the stage that would then be fastest; for costs that grow with each layer this
    greedy choice minimises the maximum exactly (Fox 1966), and leaves the rest as even as can be.

    Parameters
    ----------
    num_layers
        Layers to place.
    layer
        Seconds of one layer.
    extra
        Seconds of each stage beside its layers.
    slowdown
        Factor on each stage's seconds.
    most
        Most layers that each stage can hold.

    Returns
    -------
    tuple of int or None
        None when the layers do not fit.
    """
    stages = len(extra)
    if min(most) < 1 or stages > num_layers or sum(min(m, num_layers) for m in most) < num_layers:
        return None
    counts = [1] * stages
    # Ties go to the later stage: it keeps fewer micro-batches in flight.
    heap = [(slowdown[k] * (2 * layer + extra[k]), -k) for k in range(stages) if most[k] > 1]
    heapq.heapify(heap)
    for _ in range(num_layers - stages):
        _, negative = heapq.heappop(heap)
        k = -negative
        counts[k] += 1
        if counts[k] < most[k]:
            heapq.heappush(heap, (slowdown[k] * ((counts[k] + 1) * layer + extra[k]), negative))
    return tuple(counts)


def slowest_stage(num_layers: int, layer: float, first: float, last: float, most: IntArray) -> FloatArray:
    """Seconds of the slowest stage of the best partition, for every depth at once.

    Parameters
    ----------
    num_layers, layer
        As in `split_layers`.
    first, last
        Seconds that the first and the last stage carry on top.
    most
        Shape (P, P): `most[p - 1, k]` is the most layers that stage k of p stages can hold; 0 where k >= p.

    Returns
    -------
    array of shape (P,)
        Infinite where the layers do not fit.
    """
    depths = most.shape[0]
    extra = np.zeros((depths, depths))
    extra[:, 0] += first
    extra[np.arange(depths), np.arange(depths)] += last
    real = np.tril(np.ones((depths, depths), dtype=bool))
    fits = (most >= 1).sum(axis=1) == np.arange(1, depths + 1)
    fits &= np.minimum(most, num_layers).sum(axis=1) >= num_layers
    fits &= np.arange(1, depths + 1) <= num_layers
    steps = layer * np.arange(1, num_layers + 1)
    times = np.unique(np.concatenate([steps, steps + first, steps + last, steps + first + last]))
    low = np.zeros(depths, dtype=np.int64)
    high = np.full(depths, len(times) - 1, dtype=np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        room = np.floor((times[middle][:, None] - extra) / layer + EPSILON)
        room = np.where(real, np.minimum(room, most), 0)
        enough = (room.sum(axis=1) >= num_layers) & ((room >= 1) | ~real).all(axis=1)
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return np.where(fits, times[high], np.inf)

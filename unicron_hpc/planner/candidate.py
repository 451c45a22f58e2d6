"""A way to run a task before it has seats, and how it gets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage


class Pipe(msgspec.Struct, frozen=True):
    """One replica.

    Attributes
    ----------
    counts
        Layers per stage.
    through, each
        Seconds to fill, and per further micro-batch.
    order
        Which of the replica's groups each stage takes, counted from 0; empty for one after the other. It
        matters where they differ in speed.
    """

    counts: tuple[int, ...]
    through: float
    each: float
    order: tuple[int, ...] = ()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the task, and what is expected of it.

    Attributes
    ----------
    tensor, micro_batch_size, micro_batches
        Degree, sequences per micro-batch, micro-batches of the global batch.
    kinds
        Replicas in the order of the groups they take, equal neighbours together: (replica, how many).
    shares
        For each kind, the micro-batches of its replicas.
    parameters
        Of the rank that holds most.
    seconds
        One iteration.
    """

    tensor: int
    micro_batch_size: int
    micro_batches: int
    kinds: tuple[tuple[Pipe, int], ...]
    shares: tuple[tuple[int, ...], ...]
    parameters: float
    seconds: float

    @property
    def groups(self) -> int:
        """Tensor groups in use."""
        return sum(len(pipe.counts) * number for pipe, number in self.kinds)

    @property
    def replicas(self) -> int:
        return sum(number for _, number in self.kinds)

    def pipes(self) -> Iterator[tuple[Pipe, int]]:
        """Every replica with its micro-batches."""
        for (pipe, number), share in zip(self.kinds, self.shares, strict=True):
            yield from zip((pipe,) * number, share, strict=True)

    def pipelines(self) -> str:
        """The replicas in words: `2 x 4 stages + 1 x 3 stages`."""
        number: dict[int, int] = {}
        for pipe, count in self.kinds:
            number[len(pipe.counts)] = number.get(len(pipe.counts), 0) + count
        return " + ".join(
            f"{n} x {p} stage{'s' if p > 1 else ''}" for p, n in sorted(number.items(), reverse=True)
        )

    def describe(self) -> str:
        """In words: `tensor 1, micro-batch 2, 2 x 4 stages + 1 x 3 stages`."""
        return f"tensor {self.tensor}, micro-batch {self.micro_batch_size}, {self.pipelines()}"


def seated(candidate: Candidate, places: Sequence[tuple[str, int]], num_layers: int) -> Layout:
    """The candidate on places, group by group.

    Parameters
    ----------
    candidate
        The work.
    places
        (node, block) of each group, at least as many as the candidate has groups.
    num_layers
        Of the model.
    """
    tensor = candidate.tensor
    seats: list[Seat] = []
    replicas: list[Replica] = []
    group = batch = 0
    for pipe, share in candidate.pipes():
        stages: list[Stage] = []
        layer = 0
        start = group
        for k, count in enumerate(pipe.counts):
            node, block = places[start + pipe.order[k] if pipe.order else group]
            first = group * tensor
            stages.append(Stage(layer, layer + count - 1, tuple(range(first, first + tensor))))
            seats.extend([Seat(node, block * tensor + k) for k in range(tensor)])
            layer, group = layer + count, group + 1
        replicas.append(Replica(tuple(stages), batch, share))
        batch += share
    return Layout(num_layers, tensor, candidate.micro_batch_size, tuple(replicas), tuple(seats))

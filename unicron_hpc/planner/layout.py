"""What a layout is: which rank holds which layers of which pipeline replica, and where it runs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Seat(msgspec.Struct, frozen=True, order=True):
    """A place for one rank: the `slot`-th rank of a node (slots count from 0 on each node)."""

    node: str
    slot: int


class Stage(msgspec.Struct, frozen=True):
    """One pipeline stage of one replica.

    Attributes
    ----------
    first, last
        Global numbers of the first and last layer, inclusive, counted from 0.
    ranks
        The stage's tensor-parallel group, in tensor-rank order.
    """

    first: int
    last: int
    ranks: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        return self.last - self.first + 1


class Replica(msgspec.Struct, frozen=True):
    """One data-parallel replica: a pipeline with its own depth and its own share of micro-batches.

    Attributes
    ----------
    stages
        In pipeline order; together they hold every layer once.
    first_micro_batch, micro_batches
        The replica computes the global micro-batches `first_micro_batch` ..
        `first_micro_batch + micro_batches - 1` of every iteration.
    """

    stages: tuple[Stage, ...]
    first_micro_batch: int
    micro_batches: int


class Layout(msgspec.Struct, frozen=True):
    """Every rank's work in one task.

    Attributes
    ----------
    num_layers
        Transformer layers of the model.
    tensor
        Tensor-parallel degree, the same in every stage.
    micro_batch_size
        Sequences in a micro-batch.
    replicas
        The pipelines; ranks are numbered 0 .. world_size - 1 over all of them.
    seats
        `seats[rank]` is where that rank runs.
    """

    num_layers: int
    tensor: int
    micro_batch_size: int
    replicas: tuple[Replica, ...]
    seats: tuple[Seat, ...]

    @property
    def world_size(self) -> int:
        return len(self.seats)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the whole global batch."""
        return sum(replica.micro_batches for replica in self.replicas)

    def position(self, rank: int) -> Position:
        """Where `rank` stands: replica, stage and tensor index.

        Raises
        ------
        KeyError
            When the layout has no such rank.
        """
        for position in self.positions():
            if position.rank == rank:
                return position
        raise KeyError(rank)

    def positions(self) -> Iterator[Position]:
        """Every rank's position, replica by replica, stage by stage."""
        for r, replica in enumerate(self.replicas):
            for s, stage in enumerate(replica.stages):
                for t, rank in enumerate(stage.ranks):
                    yield Position(rank, r, s, t, len(replica.stages), stage)

    def with_seats(self, seats: tuple[Seat, ...]) -> Layout:
        """The same work at other places (a spare takes a lost node's seats)."""
        return msgspec.structs.replace(self, seats=seats)


class Position(msgspec.Struct, frozen=True):
    """One rank's coordinates in a layout.

    Attributes
    ----------
    rank, replica, stage_index, tensor_index
        All counted from 0.
    depth
        Number of stages of this rank's replica.
    stage
        The stage itself.
    """

    rank: int
    replica: int
    stage_index: int
    tensor_index: int
    depth: int
    stage: Stage

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == self.depth - 1

"""What of an interrupted iteration counts: whose gradients are kept, which micro-batches run again. Pure.

A micro-batch adds to the gradient of every unit once. When an iteration breaks off, each rank has the sums of
some micro-batches for its units: the last stages of more than the first, and ranks of a segment whose
all-reduce had ended of all. What is kept must add up to every micro-batch exactly once, for every unit. What
nobody has is computed again. Where a micro-batch runs again for the sake of some units, those that have it do
not add it a second time. (Unicron's transition; its k' = k + k / (DP - 1) is the case in which one whole
replica is lost.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from unicron_hpc.planner.layout import Layout, Position
from unicron_hpc.planner.units import WORD_EMBEDDING, UnitKey, units_of

#: With tied embeddings the first and the last stage add to the same unit; this names what the last adds.
TIED_OUTPUT = f"{WORD_EMBEDDING}.output"


class Added(msgspec.Struct, frozen=True):
    """Micro-batches that have been added to the gradients of some units.

    Attributes
    ----------
    uses
        The units, by the names of `uses`, and their tensor indices.
    micro_batches
        Global indices, ascending.
    """

    uses: tuple[UnitKey, ...]
    micro_batches: tuple[int, ...]


class Unfinished(msgspec.Struct, frozen=True):
    """What a rank has of an iteration that broke off.

    Attributes
    ----------
    iteration
        Its number.
    sums
        What the gradients in its memory are sums of.
    losses
        Micro-batches whose loss it has.
    """

    iteration: int
    sums: tuple[Added, ...]
    losses: tuple[int, ...] = ()


class Reuse(msgspec.Struct, frozen=True):
    """How a rank goes on with an interrupted iteration.

    Attributes
    ----------
    iteration
        Its number.
    keep
        Units whose gradients the rank keeps; all others start from zero.
    losses
        Whether it keeps its losses.
    run
        For each replica of the layout the micro-batches that it runs.
    added
        What of those must not be added again.
    counted
        Those whose loss is kept somewhere: it must not count again.
    """

    iteration: int
    keep: tuple[UnitKey, ...]
    losses: bool
    run: tuple[tuple[int, ...], ...]
    added: tuple[Added, ...]
    counted: tuple[int, ...]

    @property
    def redone(self) -> int:
        """How many micro-batches run (again)."""
        return sum(len(indices) for indices in self.run)

    def masked(self, index: int, *, first: bool, last: bool, tied: bool) -> frozenset[UnitKey]:
        """Units to which a rank must not add a micro-batch again.

        Parameters
        ----------
        index
            The micro-batch.
        first, last, tied
            Where the rank stands, and whether the model's embeddings are tied: see `uses`.
        """
        has = {key for added in self.added if index in added.micro_batches for key in added.uses}
        return frozenset(
            (unit, tensor_index)
            for unit, tensor_index in {(unit_of(use), tensor_index) for use, tensor_index in has}
            if {(use, tensor_index) for use in uses(unit, first=first, last=last, tied=tied)} <= has
        )


def uses(unit: str, *, first: bool, last: bool, tied: bool) -> tuple[str, ...]:
    """What a micro-batch adds to a unit on one rank: with tied embeddings one or two different things.

    Parameters
    ----------
    unit
        One that the rank holds.
    first, last
        Whether the rank is in the first and in the last stage.
    tied
        Whether embedding and output weights are shared.
    """
    if unit != WORD_EMBEDDING or not tied:
        return (unit,)
    return ((WORD_EMBEDDING,) if first else ()) + ((TIED_OUTPUT,) if last else ())


def unit_of(use: str) -> str:
    """The unit of a use."""
    return WORD_EMBEDDING if use == TIED_OUTPUT else use


def grouped(added: Mapping[UnitKey, Collection[int]]) -> tuple[Added, ...]:
    """The same, told once for all that have the same micro-batches."""
    groups: dict[tuple[int, ...], list[UnitKey]] = {}
    for key, indices in sorted(added.items()):
        if indices:
            groups.setdefault(tuple(sorted(indices)), []).append(key)
    return tuple(Added(tuple(keys), indices) for indices, keys in groups.items())


def plan_reuse(
    unfinished: Mapping[int, Unfinished],
    layout: Layout,
    *,
    iteration: int,
    tied: bool,
    learned_positions: bool,
) -> dict[int, Reuse] | None:
    """Decide what every rank keeps and runs.

    Parameters
    ----------
    unfinished
        What those ranks of the new layout have that were there before, by their new numbers.
    layout
        The new layout.
    iteration
        The iteration that is next.
    tied, learned_positions
        As in `units_of`.

    Returns
    -------
    dict or None
        For every rank of the layout; None where keeping would save no micro-batch.
    """
    reports = {rank: report for rank, report in unfinished.items() if report.iteration == iteration}
    positions = {position.rank: position for position in layout.positions()}
    added: dict[UnitKey, set[int]] = {}
    offers: list[_Offer] = []
    for rank, position in positions.items():
        units = units_of(position, tied=tied, learned_positions=learned_positions)
        for unit in units:
            for use in uses(unit, first=position.is_first, last=position.is_last, tied=tied):
                added[use, position.tensor_index] = set()
        if rank in reports:
            offers += _offers(reports[rank], position, units)
    keep: dict[int, list[UnitKey]] = {rank: [] for rank in positions}
    for offer in sorted(offers, key=_most_first):
        if all(added[key].isdisjoint(indices) for key, indices in offer.added.items()):
            for key, indices in offer.added.items():
                added[key] |= indices
            keep[offer.rank].append(offer.key)
    counted: set[int] = set()
    losses: set[int] = set()
    for rank, report in sorted(reports.items()):
        if counted.isdisjoint(report.losses):
            counted.update(report.losses)
            losses.add(rank)
    done = counted.intersection(*added.values())
    again = set(range(layout.micro_batches)) - done
    run = _shares(again, _halves(added), layout) if done else None
    if run is None:
        return None
    told = grouped({key: indices & again for key, indices in added.items()})
    return {
        rank: Reuse(iteration, tuple(keep[rank]), rank in losses, run, told, tuple(sorted(counted & again)))
        for rank in positions
    }


class _Offer(msgspec.Struct, frozen=True):
    """One gradient in one rank's memory."""

    rank: int
    key: UnitKey
    added: dict[UnitKey, set[int]]


def _offers(report: Unfinished, position: Position, units: Collection[str]) -> Iterator[_Offer]:
    """What a rank could keep: gradients of units that it holds in the new layout, too."""
    found: dict[UnitKey, dict[UnitKey, set[int]]] = {}
    for sums in report.sums:
        for use, index in sums.uses:
            unit = unit_of(use)
            if unit in units and index == position.tensor_index:
                found.setdefault((unit, index), {})[use, index] = set(sums.micro_batches)
    for key, added in found.items():
        yield _Offer(position.rank, key, added)


def _most_first(offer: _Offer) -> tuple[int, int, UnitKey]:
    return -sum(len(indices) for indices in offer.added.values()), offer.rank, offer.key


def _halves(added: Mapping[UnitKey, set[int]]) -> set[int]:
    """Micro-batches that one end of a pipeline has added to a tied embedding, and the other end has not."""
    found: set[int] = set()
    for (use, index), indices in added.items():
        if use == TIED_OUTPUT:
            found |= indices ^ added[WORD_EMBEDDING, index]
    return found


def _shares(
    again: Collection[int], halves: Collection[int], layout: Layout
) -> tuple[tuple[int, ...], ...] | None:
    """Deal micro-batches over the replicas by their shares; None where some can run on none of them.

    Where one rank is both ends of a pipeline, it cannot add to a tied embedding as only one of them.
    """
    shares: list[list[int]] = [[] for _ in layout.replicas]
    for index in sorted(again, key=lambda index: (index not in halves, index)):  # less choice first
        able = [
            ((len(share) + 1) / replica.micro_batches, number)
            for number, (share, replica) in enumerate(zip(shares, layout.replicas, strict=True))
            if index not in halves or len(replica.stages) > 1
        ]
        if not able:
            return None
        shares[min(able)[1]].append(index)
    return tuple(tuple(sorted(share)) for share in shares)

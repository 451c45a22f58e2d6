"""Gradients of this rank: one flat buffer per set of ranks that hold the same units."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime.groups import Groups, Ranks
from unicron_hpc.runtime.unit_map import UnitSpec

#: Bytes of a segment: small enough that a copy of what is being summed costs little memory.
SEGMENT = 64 * 2**20
#: Bytes of such copies at a time; one segment at least.
COPIES = 2 * SEGMENT


@dataclass(frozen=True, slots=True)
class _Segment:
    """Units next to each other in a buffer, summed by one all-reduce.

    Attributes
    ----------
    ranks
        Who holds them.
    flat
        Their gradients.
    starts
        Where each unit begins in it.
    """

    ranks: Ranks
    flat: torch.Tensor
    starts: dict[UnitKey, int]


@dataclass(frozen=True, slots=True)
class _Running:
    segment: _Segment
    work: dist.Work
    own: torch.Tensor


class Gradients:
    """Buffers, their sums over the holders, and the norm.

    Megatron's own reduction assumes that all replicas are cut alike. Here a unit's gradient is summed over
    exactly the ranks that hold it, whichever stage of whichever replica they are. That is done segment by
    segment, with a copy of what is under way: a fault finds each unit's gradient either summed or as it was.
    """

    def __init__(
        self,
        specs: Iterable[UnitSpec],
        holder_sets: dict[UnitKey, Ranks],
        rank: int,
        device: torch.device,
    ) -> None:
        members: dict[Ranks, list[UnitSpec]] = {}
        for spec in specs:
            members.setdefault(holder_sets[spec.key], []).append(spec)
        self._buffers: list[torch.Tensor] = []
        self._units: dict[UnitKey, torch.Tensor] = {}
        self._views: dict[tuple[str, str], torch.Tensor] = {}
        self._counted: list[torch.Tensor] = []
        self._segments: list[_Segment] = []
        self._running: deque[_Running] = deque()
        self._copies: list[torch.Tensor] = []
        self._summed: set[UnitKey] = set()
        # The order in which every rank sums, so that no two ranks wait for each other crosswise.
        for ranks in sorted(members):
            flat = torch.zeros(sum(spec.numel for spec in members[ranks]), device=device)
            self._buffers.append(flat)
            start = 0
            for spec in members[ranks]:
                self._add_unit(spec, flat[start : start + spec.numel], counts=ranks[0] == rank)
                start += spec.numel
            if len(ranks) > 1:
                self._segments += _segments(ranks, flat, members[ranks])

    def _add_unit(self, spec: UnitSpec, flat: torch.Tensor, *, counts: bool) -> None:
        self._units[spec.key] = flat
        for entry in spec.entries:
            view = flat[entry.offset : entry.offset + entry.numel]
            self._views[spec.unit, entry.name] = view.view(entry.shape)
            # What is not split is whole on every tensor rank; it counts once in the norm.
            if counts and (entry.partition_dim is not None or spec.tensor_index == 0):
                self._counted.append(view)

    @property
    def views(self) -> dict[tuple[str, str], torch.Tensor]:
        """(unit, entry name) -> the parameter's gradient, in its shape."""
        return self._views

    def unit(self, key: UnitKey) -> torch.Tensor:
        """A unit's gradient as it lies in the unit's row."""
        return self._units[key]

    def own(self, key: UnitKey) -> torch.Tensor:
        """A unit's gradient as far as it is sound: summed over the holders, or this rank's part."""
        for running in self._running:
            if key in running.segment.starts:
                start = running.segment.starts[key]
                return running.own[start : start + self._units[key].numel()]
        return self._units[key]

    def is_summed(self, key: UnitKey) -> bool:
        """Whether a unit's gradient is summed over several holders."""
        return key in self._summed

    def zero(self) -> None:
        """Forget the iteration before."""
        self._summed.clear()
        for flat in self._buffers:
            flat.zero_()

    def scale(self, factor: float) -> None:
        """Multiply every gradient."""
        for flat in self._buffers:
            flat.mul_(factor)

    def sum_over_holders(self, groups: Groups) -> None:
        """Sum each buffer over its holders; returns when this rank's sums are complete."""
        largest = max((segment.flat.numel() for segment in self._segments), default=0)
        at_once = max(1, COPIES // max(1, largest * 4))
        for segment in self._segments:
            if len(self._running) == at_once:
                self._finish_oldest()
            copy = self._copies.pop() if self._copies else segment.flat.new_empty(largest)
            copy[: segment.flat.numel()].copy_(segment.flat)
            work = dist.all_reduce(segment.flat, group=groups.of(segment.ranks), async_op=True)
            self._running.append(_Running(segment, work, copy))
        while self._running:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        oldest = self._running[0]
        oldest.work.wait()
        self._running.popleft()
        self._summed.update(oldest.segment.starts)
        self._copies.append(oldest.own)

    def unfinished(self) -> list[dist.Work]:
        """Sums that a fault interrupted; they may write to these buffers until they end."""
        return [running.work for running in self._running if not running.work.is_completed()]

    def squared_norm(self) -> float:
        """This rank's part of the squared norm: each parameter counts on one rank of the world only."""
        norms = torch._foreach_norm(self._counted) if self._counted else []
        return float(sum(float(norm) ** 2 for norm in norms))


def _segments(ranks: Ranks, flat: torch.Tensor, specs: list[UnitSpec]) -> list[_Segment]:
    """Cut a buffer between units; every holder cuts it alike."""
    found: list[_Segment] = []
    begin = end = 0
    starts: dict[UnitKey, int] = {}
    for spec in specs:
        if starts and (end - begin + spec.numel) * flat.element_size() > SEGMENT:
            found.append(_Segment(ranks, flat[begin:end], starts))
            begin, starts = end, {}
        starts[spec.key] = end - begin
        end += spec.numel
    found.append(_Segment(ranks, flat[begin:end], starts))
    return found

"""Gradients of this rank: one flat buffer per set of ranks that hold the same units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from unicron_hpc.runtime.groups import Groups, Ranks
from unicron_hpc.runtime.unit_map import UnitSpec


@dataclass(frozen=True, slots=True)
class _Buffer:
    ranks: Ranks
    flat: torch.Tensor


class Gradients:
    """Buffers, their sums over the holders, and the norm.

    Megatron's own reduction assumes that all replicas are cut alike. Here a unit's gradient is summed over
    exactly the ranks that hold it, whichever stage of whichever replica they are.
    """

    def __init__(
        self,
        specs: Iterable[UnitSpec],
        holder_sets: dict[tuple[str, int], Ranks],
        rank: int,
        device: torch.device,
    ) -> None:
        members: dict[Ranks, list[UnitSpec]] = {}
        for spec in specs:
            members.setdefault(holder_sets[spec.key], []).append(spec)
        self._buffers: list[_Buffer] = []
        self._units: dict[tuple[str, int], torch.Tensor] = {}
        self._views: dict[tuple[str, str], torch.Tensor] = {}
        self._counted: list[torch.Tensor] = []
        self._running: list[dist.Work] = []
        # The order in which every rank sums, so that no two ranks wait for each other crosswise.
        for ranks in sorted(members):
            flat = torch.zeros(sum(spec.numel for spec in members[ranks]), device=device)
            self._buffers.append(_Buffer(ranks, flat))
            start = 0
            for spec in members[ranks]:
                self._add_unit(spec, flat[start : start + spec.numel], counts=ranks[0] == rank)
                start += spec.numel

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

    def unit(self, key: tuple[str, int]) -> torch.Tensor:
        """A unit's gradient as it lies in the unit's row."""
        return self._units[key]

    def zero(self) -> None:
        """Forget the iteration before."""
        for buffer in self._buffers:
            buffer.flat.zero_()

    def scale(self, factor: float) -> None:
        """Multiply every gradient."""
        for buffer in self._buffers:
            buffer.flat.mul_(factor)

    def sum_over_holders(self, groups: Groups) -> None:
        """Sum each buffer over its holders; returns when this rank's sums are complete."""
        for buffer in self._buffers:
            if len(buffer.ranks) > 1:
                work = dist.all_reduce(buffer.flat, group=groups.of(buffer.ranks), async_op=True)
                self._running.append(work)
        for work in self._running:
            work.wait()
        self._running.clear()

    def unfinished(self) -> list[dist.Work]:
        """Sums that a fault interrupted; they may write to these buffers until they end."""
        return [work for work in self._running if not work.is_completed()]

    def squared_norm(self) -> float:
        """This rank's part of the squared norm: each parameter counts on one rank of the world only."""
        norms = torch._foreach_norm(self._counted) if self._counted else []
        return float(sum(float(norm) ** 2 for norm in norms))

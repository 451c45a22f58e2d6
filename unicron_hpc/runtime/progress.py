"""How far a rank is with an iteration: what each gradient is the sum of, and what is kept after a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.autograd import Variable

from unicron_hpc.planner.layout import Layout, Position
from unicron_hpc.planner.reuse import Reuse, Unfinished, grouped, unit_of, uses
from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime.chunk import Chunk
from unicron_hpc.runtime.faults import StateMismatch
from unicron_hpc.runtime.gradients import Gradients

#: Sum of the loss over a micro-batch's counted tokens, and their number.
Loss = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of an iteration that broke off, until the next epoch decides about it.

    Attributes
    ----------
    unfinished
        What it is, for the planner.
    gradients
        Each unit's gradient, flat.
    losses
        Of each micro-batch.
    """

    unfinished: Unfinished
    gradients: Mapping[UnitKey, torch.Tensor]
    losses: Mapping[int, Loss]


class Progress:
    """One rank's part of the iteration under way, in one epoch.

    Micro-batches are added whole: a hook tells when a backward pass begins and autograd's own callback when
    it has ended. In between, the gradients that have the micro-batch already are out of its reach.

    Parameters
    ----------
    layout, position, tied
        Where the rank stands; see `planner.reuse.uses`.
    chunk, gradients
        Its part of the model and where gradients are summed.
    """

    def __init__(
        self, layout: Layout, position: Position, tied: bool, chunk: Chunk, gradients: Gradients
    ) -> None:
        self._replica = layout.replicas[position.replica]
        self._whole = range(layout.micro_batches)
        self._position = position
        self._tied = tied
        self._chunk = chunk
        self._gradients = gradients
        self._reports = position.is_last and position.tensor_index == 0
        self._order: Reuse | None = None
        self._iteration = 0
        self._before: dict[UnitKey, frozenset[int]] = {}
        self._kept_losses: dict[int, Loss] = {}
        self._added: list[int] = []
        self._losses: dict[int, torch.Tensor] = {}
        self._under_way = False

    def resume(self, order: Reuse, kept: Kept | None) -> None:
        """Take over what the order says of what was kept; the gradients must be zero.

        Raises
        ------
        StateMismatch
            When it is not there.
        """
        self._order, self._iteration = order, order.iteration
        if not order.keep and not order.losses:
            return
        if kept is None or kept.unfinished.iteration != order.iteration:
            raise StateMismatch(f"nothing of iteration {order.iteration} was kept here")
        lacking = [key for key in order.keep if key not in kept.gradients]
        if lacking:
            raise StateMismatch(f"the gradients of {lacking} were not kept here")
        for key in order.keep:
            self._gradients.unit(key).copy_(kept.gradients[key])
        self._before = {
            (use, index): frozenset(added.micro_batches)
            for added in kept.unfinished.sums
            for use, index in added.uses
            if (unit_of(use), index) in order.keep
        }
        if order.losses:
            self._kept_losses = dict(kept.losses)

    def begin(self, iteration: int) -> Sequence[int]:
        """Start or go on with an iteration; the micro-batches that this rank's replica has to run."""
        if self._order is not None and self._order.iteration == iteration:
            return self._order.run[self._position.replica]
        self._order, self._iteration = None, iteration
        self._before, self._kept_losses = {}, {}
        self._added, self._losses = [], {}
        self._gradients.zero()
        first = self._replica.first_micro_batch
        return range(first, first + self._replica.micro_batches)

    def watch(self, index: int, output: torch.Tensor) -> None:
        """Note when the backward pass of a micro-batch begins here and when it has ended.

        Parameters
        ----------
        output
            What the chunk made of the micro-batch.
        """
        output.register_hook(partial(self._begins, index))  # type: ignore[no-untyped-call]

    def count(self, index: int, loss: torch.Tensor) -> None:
        """The last stage has the loss of a micro-batch: sum over its tokens and their number."""
        if self._reports and (self._order is None or index not in self._order.counted):
            self._losses[index] = loss

    def loss_and_tokens(self) -> Loss:
        """Sums over all micro-batches whose loss this rank has."""
        total, tokens = (sum(values) for values in zip((0.0, 0.0), *self._kept_losses.values(), strict=True))
        if self._losses:
            new, count = torch.stack(list(self._losses.values())).sum(0).tolist()
            total, tokens = total + new, tokens + count
        return total, tokens

    def kept(self, iteration: int, *, copy: bool) -> Kept | None:
        """What is there of an iteration, if it is the one under way and whole micro-batches have been added.

        Parameters
        ----------
        iteration
            The one that is next.
        copy
            Whether something that was left behind may still write to the gradients.
        """
        if self._iteration != iteration or self._under_way:
            return None
        masked = {m: self._masked(m) for m in self._added}
        sums: dict[UnitKey, frozenset[int]] = {}
        gradients = {}
        for spec in self._chunk.specs:
            gradient = self._gradients.own(spec.key)
            # The device has no room for two of them, while the next epoch is built.
            gradient = gradient.cpu() if gradient.device.type != "cpu" else gradient
            gradients[spec.key] = gradient.clone() if copy else gradient
            unit, index = spec.key
            if self._gradients.is_summed(spec.key):
                for use in uses(unit, first=True, last=True, tied=self._tied):
                    sums[use, index] = frozenset(self._whole)
                continue
            added = {m for m in self._added if spec.key not in masked[m]}
            here = self._uses(unit)
            for use in uses(unit, first=True, last=True, tied=self._tied):
                before = self._before.get((use, index), frozenset())
                sums[use, index] = before | added if use in here else before
        losses = dict(self._kept_losses)
        losses |= {
            m: (float(loss[0]), float(loss[1])) for m, loss in self._losses.items() if m in self._added
        }
        unfinished = Unfinished(iteration, grouped(sums), tuple(sorted(losses)))
        return Kept(unfinished, gradients, losses) if unfinished.sums else None

    def _begins(self, index: int, _gradient: torch.Tensor) -> None:
        self._under_way = True
        masked = self._masked(index)
        if masked:
            self._chunk.hide_gradients(masked)
        Variable._execution_engine.queue_callback(partial(self._ends, index, hidden=bool(masked)))

    def _ends(self, index: int, *, hidden: bool) -> None:
        if hidden:
            self._chunk.bind_gradients(self._gradients.views)
        self._added.append(index)
        self._under_way = False

    def _masked(self, index: int) -> frozenset[UnitKey]:
        if self._order is None:
            return frozenset()
        position = self._position
        return self._order.masked(index, first=position.is_first, last=position.is_last, tied=self._tied)

    def _uses(self, unit: str) -> tuple[str, ...]:
        return uses(unit, first=self._position.is_first, last=self._position.is_last, tied=self._tied)

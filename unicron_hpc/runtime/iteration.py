"""One iteration's forward and backward passes, by Megatron's own schedules."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
from megatron.core.pipeline_parallel.schedules import (
    forward_backward_no_pipelining,
    forward_backward_pipelining_without_interleaving,
)
from megatron.core.process_groups_config import ProcessGroupCollection

from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.planner.layout import Layout, Position
from unicron_hpc.runtime.chunk import Chunk
from unicron_hpc.runtime.inject import Injections
from unicron_hpc.runtime.marked_exchange import MarkedExchange
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.progress import Progress
from unicron_hpc.runtime.rng import DropoutSeeds


class MicroBatchSource(Protocol):
    """Where micro-batches come from."""

    def micro_batch(self, iteration: int, index: int) -> dict[str, torch.Tensor]:
        """Global micro-batch `index` of update `iteration` (from 1).

        Keys `tokens`, `labels`, `loss_mask`, `position_ids`, each [micro_batch_size, seq_length].
        """
        ...


class Passes:
    """Runs this rank's share of an iteration in one epoch; gradients are added where `.grad` points.

    The loss of a micro-batch is the sum over its counted tokens divided by the tokens of a full global
    batch. Whatever number of micro-batches a replica computes, gradients add up to the same sum; the commit
    corrects for tokens that the masks leave out.
    """

    def __init__(
        self,
        chunk: Chunk,
        groups: ProcessGroupCollection,
        layout: Layout,
        position: Position,
        data: MicroBatchSource,
        seeds: DropoutSeeds | None,
        marks: PhaseMarks,
        *,
        seq_length: int,
        device: torch.device,
        injections: Injections,
        progress: Progress,
    ) -> None:
        self._chunk = chunk
        self._groups = groups
        self._data = data
        self._seeds = seeds
        self._marks = marks
        self._device = device
        self._injections = injections
        self._progress = progress
        self._reads = position.is_first or position.is_last
        self._is_first = position.is_first
        self._is_last = position.is_last
        self._scale = 1.0 / (layout.micro_batches * layout.micro_batch_size * seq_length)
        self._iteration = 0
        common = {
            "model": chunk.module,
            "seq_length": seq_length,
            "micro_batch_size": layout.micro_batch_size,
            "pg_collection": groups,
        }
        if position.depth == 1:
            self._schedule = partial(forward_backward_no_pipelining, **common)
        else:
            self._schedule = partial(
                forward_backward_pipelining_without_interleaving,
                p2p_communicator=MarkedExchange(groups.pp, chunk.config, marks),
                **common,
            )

    def run(self, iteration: int) -> tuple[float, float]:
        """Forward and backward of every micro-batch of this replica that has not been added yet.

        Returns
        -------
        loss_sum, tokens
            Sum of the loss over counted tokens, and their number; zero on ranks that have none.
        """
        self._iteration = iteration
        indices = self._progress.begin(iteration)
        if indices:
            self._schedule(
                forward_step_func=self._forward, data_iterator=iter(indices), num_microbatches=len(indices)
            )
        return self._progress.loss_and_tokens()

    def _forward(self, indices: Iterator[int], model: Any) -> tuple[torch.Tensor, Any]:
        index = next(indices)
        self._marks.micro_batch(index, WorkPhase.DATA if self._reads else WorkPhase.FORWARD)
        if self._seeds is not None:
            self._seeds.start(self._iteration, index)
        batch: dict[str, torch.Tensor] = {}
        if self._reads:
            self._injections.data(self._iteration)
            batch = self._data.micro_batch(self._iteration, index)
            if self._device.type != "cpu":
                batch = {key: value.to(self._device, non_blocking=True) for key, value in batch.items()}
            self._marks.enter(WorkPhase.FORWARD)
        output = model(
            batch["tokens"] if self._is_first else None,
            batch["position_ids"] if self._is_first else None,
            None,
            labels=batch["labels"] if self._is_last else None,
        )
        output = self._injections.forward(self._iteration, output)
        self._progress.watch(index, output)
        return output, partial(self._loss, index, batch.get("loss_mask"))

    def _loss(
        self, index: int, mask: torch.Tensor | None, losses: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        assert mask is not None  # the schedule asks only the last stage
        mask = mask.to(torch.float32)
        total = (losses * mask).sum()
        tokens = mask.sum()
        sums = torch.stack((total.detach(), tokens)).double()
        self._progress.count(index, sums)
        self._marks.enter(WorkPhase.BACKWARD)  # the last stage goes on with its backward pass
        return total * self._scale, tokens.int(), sums

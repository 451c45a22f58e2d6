"""What a rank computes with in one epoch, and how it gets there once the groups are built."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from unicron_hpc.config.settings import TaskSettings
from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.runtime import groups
from unicron_hpc.runtime.attempt import Attempt
from unicron_hpc.runtime.chunk import Chunk, ChunkKey
from unicron_hpc.runtime.gradients import Gradients
from unicron_hpc.runtime.inject import Injections
from unicron_hpc.runtime.inventory import Inventory
from unicron_hpc.runtime.iteration import MicroBatchSource, Passes
from unicron_hpc.runtime.orders import Rebuild, RebuildReport
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.progress import Kept, Progress
from unicron_hpc.runtime.rng import ContentTracker, DropoutSeeds
from unicron_hpc.runtime.self_test import self_test


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank computes with in one epoch."""

    groups: groups.Groups
    chunk: Chunk
    gradients: Gradients
    progress: Progress
    passes: Passes


class Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap, or the beginning."""
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        return passed


class Places:
    """Makes a rank's place in each epoch.

    Parameters
    ----------
    task, data, device, marks, injections
        As the engine has them.
    inventory
        All state in this process's memory.
    """

    def __init__(
        self,
        task: TaskSettings,
        data: MicroBatchSource,
        device: torch.device,
        marks: PhaseMarks,
        inventory: Inventory,
        injections: Injections,
    ) -> None:
        self._task = task
        self._data = data
        self._device = device
        self._marks = marks
        self._inventory = inventory
        self._injections = injections
        self._seeds = _dropout_seeds(task, device)

    def plan(self, order: Rebuild) -> groups.GroupPlan:
        """The groups that a place needs."""
        model = self._task.model
        return groups.plan_groups(
            order.layout, order.rank, tied=model.tied, learned_positions=model.learned_positions
        )

    def take(
        self,
        order: Rebuild,
        plan: groups.GroupPlan,
        built: groups.Groups,
        chunk: Chunk | None,
        kept: Kept | None,
        attempt: Attempt,
        clock: Clock,
    ) -> tuple[Place, RebuildReport]:
        """Build the chunk or take the old one, bring the state here, go on with what was under way.

        Parameters
        ----------
        order, plan, built
            What the place is; its groups.
        chunk
            That of the epoch before, which serves on if it is the same part of the model.
        kept
            What there is of an iteration that broke off.
        attempt
            The right to change the rank's state.
        clock
            Begun when the groups were.
        """
        groups_seconds = clock.lap()
        collection = groups.collection(built)
        groups.publish(collection)
        self._marks.enter(WorkPhase.CHUNK)
        position = order.layout.position(order.rank)
        key = ChunkKey.of(position)
        ContentTracker(self._seeds, key.tensor_index, key.tensor).install()
        serves_on = chunk is not None and chunk.key == key
        if chunk is not None and serves_on:
            chunk.regroup(collection)
        else:
            chunk = Chunk(key, self._task, collection, self._seeds, self._device)
        chunk_seconds = 0.0 if serves_on else clock.lap()
        self._marks.enter(WorkPhase.STATE)
        sources = self._inventory.bring(order, chunk.needed, chunk.config, self._task.train.seed, attempt)
        chunk.bind(self._inventory.states)
        gradients = Gradients(chunk.specs, plan.holder_sets, order.rank, self._device)
        chunk.bind_gradients(gradients.views)
        progress = Progress(order.layout, position, self._task.model.tied, chunk, gradients)
        if order.reuse is not None:
            progress.resume(order.reuse, kept)
        state_seconds = clock.lap()
        self._marks.enter(WorkPhase.WARM_UP)
        built.use_once()
        warm_seconds = clock.lap()
        tested = (
            self_test(built.members, order.rank, order.layout.world_size, self._device)
            if order.self_test
            else None
        )
        passes = Passes(
            chunk,
            collection,
            order.layout,
            position,
            self._data,
            self._seeds,
            self._marks,
            seq_length=self._task.model.seq_length,
            device=self._device,
            injections=self._injections,
            progress=progress,
        )
        report = RebuildReport(
            epoch=order.epoch,
            commit_seconds=0.0,
            groups_seconds=groups_seconds,
            chunk_seconds=chunk_seconds,
            state_seconds=state_seconds,
            warm_seconds=warm_seconds,
            chunk_kept=serves_on,
            bytes_by_source=sources,
            self_test=tested,
        )
        return Place(built, chunk, gradients, progress, passes), report


def _dropout_seeds(task: TaskSettings, device: torch.device) -> DropoutSeeds | None:
    model = task.model
    if model.hidden_dropout == 0 and model.attention_dropout == 0:
        return None
    if device.type == "cpu":
        generator = torch.default_generator
    else:
        generator = torch.cuda.default_generators[device.index or 0]
    return DropoutSeeds(task.train.seed, generator)

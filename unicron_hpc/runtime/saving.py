"""A rank's part in checkpoints: a snapshot between two iterations, written by a background thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from unicron_hpc.config import TaskSettings
from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.planner.units import UnitKey, holders
from unicron_hpc.runtime import checkpoint
from unicron_hpc.runtime.channel import AgentGone, Channel
from unicron_hpc.runtime.checkpoint_load import load_units
from unicron_hpc.runtime.checkpoint_shards import Holders
from unicron_hpc.runtime.engine import Engine
from unicron_hpc.runtime.manifest import WrittenFile, partial_name
from unicron_hpc.runtime.orders import Rebuild
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.saved_model import common_of, model_arguments
from unicron_hpc.runtime.unit_map import UnitSpec
from unicron_hpc.runtime.unit_state import UnitState
from unicron_hpc.supervisor.rank_messages import CheckpointPart, RankSection

log = logging.getLogger(__name__)

#: How often a rank that waits for its disk looks whether it is wanted elsewhere, in seconds.
LOOK_INTERVAL = 0.05


class Saver:
    """Writes this rank's part of each checkpoint.

    Parameters
    ----------
    task
        Interval, folder and model.
    channel
        Where finished parts are reported.
    marks
        Where the rank says what it is doing.
    """

    def __init__(self, task: TaskSettings, channel: Channel, marks: PhaseMarks) -> None:
        self._task = task
        self._channel = channel
        self._marks = marks
        self._engine: Engine | None = None
        self._order: Rebuild | None = None
        self._holders: dict[int, Holders] = {}
        self._writer: threading.Thread | None = None
        self._memory: dict[UnitKey, UnitState] = {}

    def attach(self, engine: Engine) -> None:
        """Whose state is saved."""
        self._engine = engine

    def begin_epoch(self, order: Rebuild) -> None:
        """The layout whose ranks write the next checkpoints."""
        self._order = order
        model = self._task.model
        held = holders(order.layout, tied=model.tied, learned_positions=model.learned_positions)
        # The epoch before is kept: the word that its last checkpoint is complete may just be arriving.
        before = list(self._holders.items())[-1:]
        self._holders = dict([*before, (order.epoch, held)])

    def load(self, path: Path, wanted: Iterable[UnitSpec]) -> Iterable[UnitState]:
        """Read units from a checkpoint of this model."""
        return load_units(path, list(wanted), model=model_arguments(self._task)).values()

    def after_commit(self, iteration: int, interrupted: Callable[[], bool]) -> None:
        """Begin a save if one is due. Costs a copy of the state; the rest happens in the background."""
        if self._order is None or self._engine is None:
            return
        interval = self._task.checkpoint.save_interval
        # These are not left out because the one before is still being written.
        must = iteration in (self._task.train.train_iters, self._engine.saves_after)
        if not must and (interval == 0 or iteration % interval):
            return
        self._marks.take(WorkPhase.CHECKPOINT)
        if must:
            self.wait(interrupted)
        if self._writer and self._writer.is_alive():
            log.warning(
                "checkpoint of iteration %d left out: the one before is still being written", iteration
            )
            return
        order = self._order
        directory = self._task.checkpoint.dir / partial_name(iteration, order.epoch)
        held = self._holders[order.epoch]
        self._memory = checkpoint.snapshot(self._engine.states, held, order.rank, reuse=self._memory)
        pending = checkpoint.begin_save(
            directory, self._memory, rank=order.rank, holders=held, iteration=iteration
        )
        self._writer = threading.Thread(
            target=self._write, args=(pending, iteration, order.epoch), name="checkpoint", daemon=True
        )
        self._writer.start()

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Wait for the part that is being written, however slow the disk is, or until `interrupted`."""
        writer = self._writer
        if writer is None or not writer.is_alive():
            return
        self._marks.take(WorkPhase.CHECKPOINT)
        epoch = self._order.epoch if self._order else 0
        self._channel.send(RankSection(epoch, "checkpoint"))
        while writer.is_alive() and not interrupted():
            writer.join(LOOK_INTERVAL)
        self._channel.send(RankSection(epoch, ""))

    def finish(self, epoch: int, iteration: int, directory: Path, files: Sequence[WrittenFile]) -> None:
        """All parts are there: write the metadata, in the background."""
        threading.Thread(
            target=self._finish,
            args=(epoch, iteration, directory, files, self._holders.get(epoch, {})),
            name="checkpoint metadata",
            daemon=True,
        ).start()

    def _write(self, pending: checkpoint.PendingSave, iteration: int, epoch: int) -> None:
        files: tuple[WrittenFile, ...] = ()
        error = ""
        try:
            files = pending.write()
        except Exception as failure:  # whatever it is, the coordinator must not wait for this part
            log.exception("part of checkpoint %d could not be written", iteration)
            error = f"{type(failure).__name__}: {failure}"
        self._tell(CheckpointPart(epoch, iteration, str(pending.directory), files, error=error))

    def _finish(
        self,
        epoch: int,
        iteration: int,
        directory: Path,
        files: Sequence[WrittenFile],
        held: Holders,
    ) -> None:
        whole: tuple[WrittenFile, ...] = ()
        error = ""
        try:
            whole = checkpoint.finish_save(
                directory, files, holders=held, common=common_of(self._task, iteration)
            )
        except Exception as failure:  # as above
            log.exception("metadata of checkpoint %d could not be written", iteration)
            error = f"{type(failure).__name__}: {failure}"
        self._tell(CheckpointPart(epoch, iteration, str(directory), whole, complete=True, error=error))

    def _tell(self, part: CheckpointPart) -> None:
        try:
            self._channel.send(part)
        except AgentGone:
            log.warning("checkpoint of iteration %d: nobody is left to be told", part.iteration)

"""The coordinator's part in checkpoints: collects the ranks' parts, seals the whole, finds the newest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from unicron_hpc.config import TaskSettings
from unicron_hpc.errors import UnicronError
from unicron_hpc.planner.layout import Layout
from unicron_hpc.report.journal import Journal
from unicron_hpc.runtime.manifest import (
    Found,
    newest_whole,
    prune,
    publish,
    write_manifest,
)
from unicron_hpc.runtime.saved_model import common_of
from unicron_hpc.supervisor.in_time import in_time
from unicron_hpc.supervisor.rank_messages import CheckpointPart, FinishCheckpoint, RankAddress, ToRank

log = logging.getLogger(__name__)


class Checkpoints:
    """Checkpoints of one task.

    Parameters
    ----------
    task
        Where they are, how many are kept.
    journal
        Takes `checkpoint_saved`, `checkpoint_failed` and `checkpoint_skipped`.
    tell
        Sends an order to a rank.
    on_settled
        Called whenever a save has ended, well or badly.
    """

    def __init__(
        self,
        task: TaskSettings,
        journal: Journal,
        tell: Callable[[RankAddress, ToRank], None],
        on_settled: Callable[[], None],
    ) -> None:
        self._task = task
        self._journal = journal
        self._tell = tell
        self._on_settled = on_settled
        self._layouts: dict[int, Layout] = {}
        self._parts: dict[str, dict[RankAddress, CheckpointPart]] = {}
        self._sealing: set[asyncio.Task[None]] = set()
        self._whole: set[Path] = set()
        self._newest = 0
        self.failures = 0
        self.failure = ""  # why the checkpoint of the last iteration could not be written

    def begin_epoch(self, epoch: int, layout: Layout) -> None:
        """Note whose parts make up a checkpoint begun in `epoch`; unfinished older ones are given up."""
        self._layouts = {epoch: layout}
        self._parts = {}
        self.failure = ""

    @property
    def newest(self) -> int:
        """Iteration of the newest checkpoint that this run has sealed; 0 for none."""
        return self._newest

    def saved(self, iteration: int) -> bool:
        """Whether nothing is left to wait for at the end of the task."""
        return self._newest >= iteration

    def on_part(self, rank: RankAddress, part: CheckpointPart) -> None:
        """A rank has written its part, or one rank has completed the metadata."""
        layout = self._layouts.get(part.epoch)
        if layout is None:
            return  # of an epoch that is over
        if part.error:
            self._failed(part, part.error)
        elif part.complete:
            task = asyncio.create_task(self._seal(part, layout))
            self._sealing.add(task)
            task.add_done_callback(self._sealing.discard)
        else:
            parts = self._parts.setdefault(part.directory, {})
            parts[rank] = part
            if len(parts) == layout.world_size:
                files = tuple(file for one in parts.values() for file in one.files)
                del self._parts[part.directory]
                first = min(parts, key=lambda address: layout.seats.index(address.seat))
                self._tell(first, FinishCheckpoint(part.epoch, part.iteration, part.directory, files))

    async def find_newest(self, epoch: int) -> Found | None:
        """The newest whole checkpoint; each one that is passed over is named in the journal."""
        found, skipped = await in_time(lambda: newest_whole(self._task.checkpoint.dir), None)
        for path, why in skipped:
            log.warning("checkpoint %s skipped: %s", path, why)
            self._journal.write("checkpoint_skipped", epoch, task=self._task.name, path=str(path), reason=why)
        if found:
            # Nothing has to be saved again that is on disk, even if the task was to end before it.
            self._newest = max(self._newest, found.iteration)
        return found

    def _failed(self, part: CheckpointPart, error: str) -> None:
        log.error("checkpoint of iteration %d failed: %s", part.iteration, error)
        self._journal.write(
            "checkpoint_failed", part.epoch, task=self._task.name, iteration=part.iteration, error=error
        )
        self._parts.pop(part.directory, None)
        self.failures += 1
        if part.iteration >= self._task.train.train_iters:
            self.failure = error
        self._on_settled()

    async def _seal(self, part: CheckpointPart, layout: Layout) -> None:
        try:
            path = await asyncio.to_thread(self._write, part, layout)
        except (UnicronError, OSError) as error:
            self._failed(part, str(error))
            return
        self._newest = max(self._newest, part.iteration)
        self._journal.write(
            "checkpoint_saved",
            part.epoch,
            task=self._task.name,
            iteration=part.iteration,
            path=str(path),
            bytes=sum(file.bytes for file in part.files),
        )
        asyncio.get_running_loop().call_soon(self._on_settled)

    def _write(self, part: CheckpointPart, layout: Layout) -> Path:
        directory = Path(part.directory)
        write_manifest(
            directory,
            iteration=part.iteration,
            files=part.files,
            layout_summary={
                "world_size": layout.world_size,
                "tensor": layout.tensor,
                "micro_batch_size": layout.micro_batch_size,
                "replicas": [[s.num_layers for s in replica.stages] for replica in layout.replicas],
            },
            common=common_of(self._task, part.iteration),
        )
        path = publish(directory)
        self._whole.add(path)
        prune(path.parent, self._task.checkpoint.keep, known_whole=self._whole)
        return path

"""Writes metrics.jsonl: every committed iteration once, in order, whoever tells of it and however often."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from unicron_hpc.report.appender import Appender
from unicron_hpc.report.journal import METRICS, NOT_AS_EXPECTED, read_lines
from unicron_hpc.runtime.orders import Committed


class CommitLog:
    """The committed iterations of all tasks.

    Parameters
    ----------
    run_folder
        Folder of `metrics.jsonl`; what a predecessor wrote there is not written again.
    """

    def __init__(self, run_folder: Path) -> None:
        path = run_folder / METRICS
        self._last: dict[str, int] = {}
        # Commits of older epochs than the last one written may have been rolled back since, and agents
        # repeat them to a successor that knows nothing of the roll-back but this file.
        self._floor: dict[str, int] = {}
        for record in read_lines(path):
            with suppress(*NOT_AS_EXPECTED):  # a damaged line must not keep every successor from office
                task, iteration, epoch = str(record["task"]), int(record["iteration"]), int(record["epoch"])
                self._last[task], self._floor[task] = iteration, epoch
        self._file = Appender(path)
        self._early: dict[str, dict[int, tuple[int, Committed]]] = {}
        self._world_sizes: dict[tuple[str, int], int] = {}

    def last(self, task: str) -> int:
        """The last iteration written; 0 when none is."""
        return self._last.get(task, 0)

    def begin_epoch(self, task: str, epoch: int, world_size: int) -> None:
        """Note the size of a new epoch's world, which its lines carry."""
        self._world_sizes[task, epoch] = world_size

    def roll_back(self, task: str, epoch: int, iteration: int) -> None:
        """Training goes on from `iteration` again: later ones are committed anew from `epoch` on."""
        self._last[task] = iteration
        self._floor[task] = epoch
        self._early.pop(task, None)

    def add(self, task: str, epoch: int, committed: Committed) -> bool:
        """Take a report of a commit.

        Returns
        -------
        bool
            Whether it was news.
        """
        last = self._last.setdefault(task, committed.iteration - 1)
        if committed.iteration <= last or epoch < self._floor.get(task, 0):
            return False
        early = self._early.setdefault(task, {})
        waiting = early.get(committed.iteration)
        if waiting is not None and waiting[0] >= epoch:
            return False
        early[committed.iteration] = (epoch, committed)
        while (following := self._last[task] + 1) in early:
            self._write(task, *early.pop(following))
        return True

    def flush(self, task: str) -> None:
        """Write what came with a gap before it (its report was lost with a node)."""
        for iteration, (epoch, committed) in sorted(self._early.pop(task, {}).items()):
            if iteration > self._last[task]:
                self._write(task, epoch, committed)

    def flush_file(self, seconds: float) -> bool:
        """Wait until readers see all that was written; False when that takes longer."""
        return self._file.flush(seconds)

    def close(self) -> None:
        """Close the file. What waits for its predecessor stays unwritten: the office may have passed on."""
        self._file.close()

    def _write(self, task: str, epoch: int, committed: Committed) -> None:
        self._last[task] = committed.iteration
        self._file.append(
            {
                "task": task,
                "iteration": committed.iteration,
                "loss": committed.loss,
                "time": time.time(),
                "iteration_seconds": committed.seconds,
                "epoch": epoch,
                "world_size": self._world_sizes.get((task, epoch)),
                "tokens": committed.tokens,
                "grad_norm": committed.grad_norm,
                "lr": committed.lr,
            }
        )

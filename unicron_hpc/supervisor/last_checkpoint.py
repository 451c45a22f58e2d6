"""A run that is asked to end saves first, as far as there is time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from unicron_hpc.report.journal import Journal
from unicron_hpc.supervisor.task_saves import TaskSaves


@dataclass(slots=True)
class _Wish:
    """One more checkpoint of a task, later than iteration `after`; it was last ordered in `epoch`."""

    saves: TaskSaves
    after: int
    failures: int
    epoch: int = 0

    @property
    def is_open(self) -> bool:
        saves = self.saves
        return saves.epoch is not None and saves.newest <= self.after and saves.failures == self.failures

    @property
    def words(self) -> str:
        saves = self.saves
        if saves.newest > self.after:
            return f"task {saves.name} is saved at iteration {saves.newest}"
        if saves.epoch is None:
            return f"task {saves.name} is finished"
        kept = f"; its newest is of iteration {saves.newest}" if saves.newest else ""
        return f"no last checkpoint of task {saves.name} came about{kept}"


class LastCheckpoint:
    """Ends the run after one more checkpoint of every task.

    Parameters
    ----------
    journal
        Takes `stop_requested`.
    finish
        Ends the run, with the reason.
    """

    def __init__(self, journal: Journal, finish: Callable[[str], None]) -> None:
        self._journal = journal
        self._finish = finish
        self._reason = ""
        self._until = float("inf")
        self._wishes: list[_Wish] = []

    def begin(self, tasks: Iterable[TaskSaves], reason: str, seconds: float, epoch: int) -> None:
        """Somebody wants the run to end within so many seconds; asked again, it may only be sooner."""
        now = time.monotonic()
        self._until = min(self._until, now + seconds)
        if not self._reason:
            self._reason = reason
            self._wishes = [
                _Wish(saves, saves.committed, saves.failures) for saves in tasks if saves.epoch is not None
            ]
            names = [wish.saves.name for wish in self._wishes]
            self._journal.write("stop_requested", epoch, reason=reason, seconds=seconds, tasks=names)
        self.look(now)

    def look(self, now: float) -> None:
        """Order the checkpoints, again in each new epoch; end when they are there, or the time is up."""
        if not self._reason:
            return
        wishes = [wish for wish in self._wishes if wish.is_open]
        if not wishes or now >= self._until:
            self._finish("; ".join([self._reason, *(wish.words for wish in self._wishes)]))
            return
        for wish in wishes:
            epoch = wish.saves.epoch
            if epoch is not None and epoch != wish.epoch:
                wish.epoch = epoch
                wish.saves.order()

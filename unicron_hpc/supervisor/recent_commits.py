"""An agent's short memory of committed iterations, for coordinators that missed some."""

from __future__ import annotations

from collections import OrderedDict

from unicron_hpc.planner.layout import Seat
from unicron_hpc.runtime.orders import Committed
from unicron_hpc.supervisor.rank_messages import RankAddress

#: Iterations remembered per task.
MEMORY = 256

CommitRecord = tuple[str, int, Committed]


class RecentCommits:
    """The last committed iterations of each task that runs on this node."""

    def __init__(self) -> None:
        self._records: dict[str, OrderedDict[int, CommitRecord]] = {}
        self._speakers: dict[str, Seat] = {}

    def add(self, task: str, epoch: int, committed: Committed) -> None:
        """Remember a commit; the first rank to tell of an iteration is the one that counts."""
        records = self._records.setdefault(task, OrderedDict())
        known = records.get(committed.iteration)
        if known is None or known[1] < epoch:
            if known is not None:  # rolled back: it and all after it are computed again
                for iteration in [n for n in records if n >= committed.iteration]:
                    del records[iteration]
            records[committed.iteration] = (task, epoch, committed)
            while len(records) > MEMORY:
                records.popitem(last=False)

    def speaks_for(self, rank: RankAddress) -> bool:
        """Whether this rank's commits are passed on; others of the same node and task say the same."""
        speaker = self._speakers.setdefault(rank.task, rank.seat)
        if rank.seat.slot < speaker.slot:
            self._speakers[rank.task] = rank.seat
        return rank.seat == self._speakers[rank.task]

    def fresh(self, count: int = 8) -> tuple[CommitRecord, ...]:
        """The newest few of each task; heartbeats repeat them, so that one lost message loses nothing."""
        return tuple(
            record for records in self._records.values() for record in list(records.values())[-count:]
        )

    def all(self) -> tuple[CommitRecord, ...]:
        """All that is remembered."""
        return tuple(record for records in self._records.values() for record in records.values())

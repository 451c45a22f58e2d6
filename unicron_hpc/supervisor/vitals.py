"""The newest vitals of a task's ranks, as their agents tell them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unicron_hpc.supervisor.rank_messages import RankAddress
from unicron_hpc.supervisor.watch_messages import Vital

#: Seconds after which a vital says nothing any more: its agent sends one with each sign of life.
FRESH = 2.0


@dataclass(frozen=True, slots=True)
class _Told:
    vital: Vital
    time: float


class Vitals:
    """What was told last of every process."""

    def __init__(self) -> None:
        self._told: dict[RankAddress, _Told] = {}

    def note(self, vital: Vital, now: float) -> None:
        """An agent tells how a rank looks."""
        self._told[vital.rank] = _Told(vital, now)

    def of(self, addresses: Iterable[RankAddress], epoch: int, now: float) -> dict[RankAddress, Vital]:
        """Fresh vitals of these processes in this epoch; all others are forgotten."""
        wanted = set(addresses)
        self._told = {a: t for a, t in self._told.items() if a in wanted and now - t.time <= FRESH}
        return {a: t.vital for a, t in self._told.items() if t.vital.epoch == epoch}

    def somebody_works(self, addresses: Iterable[RankAddress], epoch: int, now: float) -> bool:
        """Whether a process is busy with something of its own, which its agent judges.

        While that is so, the others wait for it, and no message is lost.
        """
        return any(vital.at_work for vital in self.of(addresses, epoch, now).values())

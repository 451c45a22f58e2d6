"""What the coordinator knows of one task; shared by its control and its transitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from unicron_hpc.config import TaskSettings
from unicron_hpc.planner.candidate import Candidate
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.work import NodeSlots, TaskWork
from unicron_hpc.supervisor.incident import Incident
from unicron_hpc.supervisor.keystore import KeyStore
from unicron_hpc.supervisor.seats import Seats


@dataclass(slots=True)
class TaskState:
    """One task.

    Attributes
    ----------
    task, work
        Its settings, and the task as the planner sees it.
    seats
        Its processes.
    store
        The key-value store of the running epoch.
    nodes
        The nodes that it has; none while it waits.
    planned
        Names of the nodes for which the layout was chosen.
    candidate, from_table
        How it shall run on `nodes`, where that was worked out with the allocation, and whether it was ready.
    epoch
        The epoch that runs or that the transition under way leads to.
    layout
        The layout of that epoch; None before the first plan.
    running_epoch
        The last epoch whose transition was finished; commits that a rank remembers are of it or older.
    incident
        The open incident, if any.
    restarts
        How often each seat's process ended since the last commit.
    news
        Set whenever something about the processes has changed.
    """

    task: TaskSettings
    work: TaskWork
    seats: Seats
    store: KeyStore
    nodes: tuple[NodeSlots, ...] = ()
    planned: frozenset[str] = frozenset()
    candidate: Candidate | None = None
    from_table: bool = False
    epoch: int = 0
    layout: Layout | None = None
    running_epoch: int = 0
    finished: bool = False
    incident: Incident | None = None
    restarts: Counter[Seat] = field(default_factory=Counter)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.task.name

    def rank_of(self, seat: Seat) -> int | None:
        """The rank that a seat has in the layout, if it has one."""
        if self.layout is None or seat not in self.layout.seats:
            return None
        return self.layout.seats.index(seat)

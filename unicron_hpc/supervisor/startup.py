"""When training may begin: the data is ready and the nodes are there, or have had their time."""

from __future__ import annotations

from collections.abc import Callable, Collection

from unicron_hpc.supervisor.members import Members, Node
from unicron_hpc.supervisor.messages import Role

#: Once all active nodes are there, how long spares and stragglers may still take to join, in seconds.
JOIN_GRACE = 15.0


class Startup:
    """The time before the first epoch.

    Parameters
    ----------
    members, active
        The nodes, and how many of them train.
    tasks
        Names of the tasks, whose data must be prepared.
    limit
        Seconds that too few nodes are waited for.
    now
        Monotonic time.
    """

    def __init__(
        self, members: Members, active: int, tasks: Collection[str], limit: float, now: float
    ) -> None:
        self._members = members
        self._active = active
        self._limit = limit
        self._begun = self._last_join = now
        self._unprepared = set(tasks)
        self._asked = False
        self.data_ready: set[str] = set()

    def joined(self, now: float) -> None:
        """A node has joined."""
        self._last_join = now

    def prepare(self, ask: Callable[[str], None]) -> None:
        """Have the data of every task prepared; asks once."""
        if not self._asked:
            self._asked = True
            for task in self._unprepared - self.data_ready:
                ask(task)

    def may_begin(self, now: float) -> bool:
        """Whether there is nothing left to wait for."""
        alive = self._members.alive()
        if not alive or self._unprepared - self.data_ready:
            return False
        if not self._members.waiting():
            return True
        if len(alive) >= self._active:
            return now - self._last_join >= JOIN_GRACE
        return now - self._begun >= self._limit

    def stand_in(self) -> list[Node]:
        """Give the places of active nodes that never came to spares; returns who never came."""
        absent = self._members.waiting()
        here = self._members.alive()
        trained = sum(1 for node in here if node.role is Role.ACTIVE)
        for node in [node for node in here if node.role is Role.SPARE][: max(0, self._active - trained)]:
            node.role = Role.ACTIVE
        return absent

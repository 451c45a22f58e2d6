"""The rank processes of a task as the coordinator knows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unicron_hpc.planner.layout import Seat
from unicron_hpc.runtime.orders import Holdings, RebuildReport
from unicron_hpc.supervisor.rank_messages import RankAddress


@dataclass(slots=True)
class RankProcessState:
    """One process in one seat.

    Attributes
    ----------
    address
        Task, seat and incarnation; messages of another incarnation are not about this process.
    pid
        0 until the agent has said it runs.
    said_hello
        It listens.
    holdings, held_epoch
        Its last report and the epoch for which it was given.
    report, ready_epoch
        Its last rebuild and the epoch of that.
    finished
        It has committed the last iteration.
    """

    address: RankAddress
    pid: int = 0
    said_hello: bool = False
    holdings: Holdings | None = None
    held_epoch: int = 0
    report: RebuildReport | None = None
    ready_epoch: int = 0
    finished: bool = False


class Seats:
    """Which process sits where."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._processes: dict[Seat, RankProcessState] = {}
        self._incarnations: dict[Seat, int] = {}

    def __iter__(self) -> Iterator[RankProcessState]:
        return iter(list(self._processes.values()))

    def __contains__(self, seat: Seat) -> bool:
        return seat in self._processes

    def get(self, seat: Seat) -> RankProcessState | None:
        return self._processes.get(seat)

    def find(self, address: RankAddress) -> RankProcessState | None:
        """The process with exactly this address, if it is (still) the seat's."""
        process = self._processes.get(address.seat)
        return process if process and process.address == address else None

    def new(self, seat: Seat, incarnation: int) -> RankProcessState:
        """Make room for a new process in a seat.

        Parameters
        ----------
        incarnation
            Higher than that of every process that the seat had, also under other coordinators: the epoch
            for which it is started.
        """
        self._incarnations[seat] = incarnation
        process = RankProcessState(RankAddress(self._task, seat, incarnation))
        self._processes[seat] = process
        return process

    def adopt(self, address: RankAddress, pid: int) -> None:
        """Take over a process that a predecessor started.

        One that was given up here is not: its agent may list it once more before the order to kill it comes.
        """
        if address.incarnation > self._incarnations.get(address.seat, 0):
            self._incarnations[address.seat] = address.incarnation
            self._processes[address.seat] = RankProcessState(address, pid=pid, said_hello=True)

    def remove(self, seat: Seat) -> None:
        self._processes.pop(seat, None)

    def on_node(self, node: str) -> list[RankProcessState]:
        return [process for process in self if process.address.seat.node == node]

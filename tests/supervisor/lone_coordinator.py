"""A real coordinator whose agents and ranks are simulated: they do at once what they are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.slurm.settings_for_tests import settings
from unicron_hpc.detect.severity import Finding, Method
from unicron_hpc.planner.layout import Seat
from unicron_hpc.report.journal import EVENTS, read_lines
from unicron_hpc.runtime.orders import Committed, Holdings, Phase, RebuildReport
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.coordinator import Coordinator
from unicron_hpc.supervisor.messages import (
    Body,
    DataReady,
    Envelope,
    Finish,
    JobSnapshot,
    Join,
    Noticed,
    RankExited,
    RankSaid,
    RankStarted,
    RankState,
    Role,
    StartRank,
    StopRank,
    TellRank,
    decode,
    encode,
)
from unicron_hpc.supervisor.rank_messages import (
    Cut,
    FromRank,
    RankAddress,
    RankCommitted,
    RankFault,
    RankHeld,
    RankHello,
    RankReady,
    RebuildOrder,
)


class LoneJob:
    """`active` nodes n1, n2, ... and `spares` more, a rank on each; n1 coordinates.

    Parameters
    ----------
    folder
        The run folder.
    overrides
        Settings of train.yaml.
    """

    def __init__(
        self, folder: Path, *overrides: str, active: int = 3, spares: int = 1, on_slurm: bool = False
    ) -> None:
        self.folder = folder
        nodes = tuple(f"n{number + 1}" for number in range(active + spares))
        self.sent: list[tuple[str, Body]] = []
        self.stopped: list[RankAddress] = []
        self.ended: set[RankAddress] = set()
        self.deaf: set[str] = set()
        self.ranks: dict[Seat, RankAddress] = {}
        self.epoch = 0
        self._iteration = 0
        self._pid = 100
        words = (f"slurm.nodes={active}", f"slurm.spares={spares}", "checkpoint.resume=false", *overrides)
        self._settings = settings(*words, run_dir=folder.parent)
        self._allocation = Allocation("17", nodes, active, 1, "n1" if on_slurm else "")
        self.coordinator = self._coordinator("n1", None, None)
        self.nodes = nodes

    def _coordinator(self, node: str, snapshot: JobSnapshot | None, predecessor: str | None) -> Coordinator:
        return Coordinator(
            run_folder=self.folder,
            node=node,
            settings=self._settings,
            allocation=self._allocation,
            snapshot=snapshot,
            predecessor=predecessor,
            post=self._post,
            forget=lambda node: None,
            learn=lambda addresses: None,
            witness=lambda absent: False,
        )

    async def __aenter__(self) -> LoneJob:
        self.coordinator.start(1)
        for node in self.nodes:
            self.coordinator.handle(node, Join(f"tcp://{node}:1", 5, 1, 0, True, (), ()))
        self.coordinator.tick(time.monotonic())
        self.coordinator.handle("n1", DataReady("tiny"))
        self.coordinator.tick(time.monotonic())
        await self.running()
        self.commit()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.coordinator.close()

    def succeed(self, node: str) -> None:
        """The coordinator's node dies; this one goes on with what its agent has been told."""
        told = [body for to, body in self.sent if to == node and isinstance(body, JobSnapshot)]
        over_the_wire = decode(encode(Envelope("", 1, told[-1]))).body
        assert isinstance(over_the_wire, JobSnapshot)
        self.coordinator.close()
        self.coordinator = self._coordinator(node, over_the_wire, over_the_wire.coordinator)
        self.coordinator.start(2)
        gone = {m.node for m in over_the_wire.members if m.role is Role.LOST} | {over_the_wire.coordinator}
        self.ended |= {rank for seat, rank in self.ranks.items() if seat.node in gone}
        for name in (name for name in self.nodes if name not in gone):
            here = [rank for seat, rank in self.ranks.items() if seat.node == name and rank not in self.ended]
            states = tuple(RankState(rank, 1, self.epoch) for rank in here)
            self.coordinator.handle(name, Join(f"tcp://{name}:1", 5, 1, self.epoch, True, states, ()))
        self.coordinator.tick(time.monotonic())

    # ------------------------------------------------------------ what agents and ranks do

    def _post(self, node: str, body: Body) -> None:
        self.sent.append((node, body))
        asyncio.get_running_loop().call_soon(self._react, self.coordinator, node, body)

    def _react(self, sender: Coordinator, node: str, body: Body) -> None:
        if sender is not self.coordinator:
            return
        match body:
            case StartRank(rank):
                self.ranks[rank.seat] = rank
                self._pid += 1
                self.coordinator.handle(node, RankStarted(rank, self._pid))
                self.say(rank, RankHello(self._pid))
            case StopRank(rank):
                self.stopped.append(rank)
                self.ended.add(rank)
            case TellRank(rank, Cut(epoch)) if node not in self.deaf:
                self.say(rank, RankHeld(epoch, Holdings(0, Phase.IDLE, 0, (), ())))
            case TellRank(rank, RebuildOrder(rebuild)):
                self.epoch = rebuild.epoch
                report = RebuildReport(rebuild.epoch, 0.0, 0.0, 0.0, 0.0, 0.0, True, {"seed": 1})
                self.say(rank, RankReady(rebuild.epoch, report))

    def say(self, rank: RankAddress, said: FromRank, when: float | None = None) -> None:
        self.coordinator.handle(rank.seat.node, RankSaid(rank, said, time.time() if when is None else when))

    def commit(self) -> None:
        """Commit the next iteration of the running epoch."""
        self._iteration += 1
        committed = Committed(self._iteration, 1.0, 0.1, 1e-3, 64, 0.1)
        somebody = next(rank for rank in self.ranks.values() if rank not in self.ended)
        self.say(somebody, RankCommitted(self.epoch, committed))

    def on(self, node: str) -> RankAddress:
        """The newest process of a node."""
        return self.ranks[Seat(node, 0)]

    def raises(self, node: str, error: str, *, epoch: int | None = None, when: float | None = None) -> None:
        epoch = self.epoch if epoch is None else epoch
        self.say(self.on(node), RankFault(epoch, error, f"Traceback of {node}\n{error}"), when)

    def dies(self, node: str, status: int = -9, *, memory: str = "", words: str = "") -> RankAddress:
        rank = self.on(node)
        self.ended.add(rank)
        exited = RankExited(rank, 1, status, words, time.time(), False, words, memory)
        self.coordinator.handle(node, exited)
        return rank

    def notices(
        self,
        node: str,
        finding: Finding,
        rank: RankAddress | None = None,
        epoch: int = 0,
        *,
        when: float | None = None,
        method: Method = Method.NODE_HEALTH,
    ) -> None:
        when = time.time() if when is None else when
        noticed = Noticed(finding, method, "seen from outside", when, rank, epoch)
        self.coordinator.handle(node, noticed)

    # ------------------------------------------------------------ what came of it

    async def running(self) -> None:
        """Wait until no transition is under way."""
        await self.until(lambda: not self.coordinator._board.tasks["tiny"].in_transition)
        self._iteration = 0  # the simulated ranks hold no state: each epoch begins anew

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not condition():
                await asyncio.sleep(0.001)

    def events(self, kind: str) -> list[dict[str, Any]]:
        assert self.coordinator._board.journal.flush_file(10.0)
        return [event for event in read_lines(self.folder / EVENTS) if event["type"] == kind]

    @property
    def rules(self) -> list[tuple[str, str]]:
        """Node and rule of every action."""
        return [(event["node"], event["rule"]) for event in self.events("action_chosen")]

    @property
    def lost(self) -> list[str]:
        return [event["node"] for event in self.events("agent_lost")]

    @property
    def told_to_leave(self) -> set[str]:
        return {node for node, body in self.sent if isinstance(body, Finish)}

    @property
    def cause(self) -> str | None:
        """Why the run ended; None while it goes on."""
        ends = self.events("job_finished")
        return str(ends[0]["cause"]) if ends else None

    @property
    def verdicts(self) -> list[tuple[int, list[int], list[str], str, bool]]:
        """Incident, suspects, nodes, error, and whether it corrects another, of every verdict."""
        return [
            (e["incident"], e["suspects"], e["nodes"], e["error"], e["corrects"])
            for e in self.events("verdict")
        ]

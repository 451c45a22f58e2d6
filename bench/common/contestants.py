"""Trainings that take turns on one machine: all are alive, all but one are stopped."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from common.load import busy_seconds
from common.places import REPOSITORY, Local
from common.processes import cpu_seconds, descendants, signal_all
from common.watching import BenchError, Watched

#: Iterations after each turn's first commit that do not count: caches are cold.
COLD = 1


@dataclass(slots=True)
class Turns:
    """What a training did in its turns.

    Attributes
    ----------
    periods
        Seconds from one commit to the next, a list per turn.
    foreign
        Cores that other work used in each turn, on average.
    cpu_seconds, iterations
        Processor time of all its processes in all turns, and iterations committed in them.
    losses
        Loss by iteration.
    """

    periods: list[list[float]] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    iterations: int = 0
    losses: dict[int, float] = field(default_factory=dict)

    def take(
        self, records: Sequence[Mapping[str, float]], begun: float, ended: float, cpu_seconds: float
    ) -> None:
        """Add a turn; only iterations that lie wholly in it count for the periods."""
        self.cpu_seconds += cpu_seconds
        # What a turn leaves half done is finished in the next one, so over all turns this is right.
        self.iterations += sum(record["time"] > begun for record in records)
        times = [record["time"] for record in records if begun < record["time"] < ended][COLD:]
        self.periods.append([after - before for before, after in itertools.pairwise(times)])
        self.losses |= {int(record["iteration"]): record["loss"] for record in records}


class Contestant(Protocol):
    """A training that can be stopped and can go on."""

    name: str
    turns: Turns

    def records(self) -> Sequence[Mapping[str, float]]:
        """All iterations until now: `iteration`, `loss`, and `time` of the commit."""
        ...

    def pids(self) -> Sequence[int]:
        """Its processes, in the order in which they go on."""
        ...


class Supervised:
    """A run under the supervisor."""

    def __init__(self, name: str, place: Local, train_yaml: Path, settings: Mapping[str, object]) -> None:
        self.name = name
        self.turns = Turns()
        self._place = place
        self.run: Watched = place.submit(train_yaml, settings)
        self._pids: list[int] = []

    def records(self) -> Sequence[Mapping[str, float]]:
        return self.run.metrics

    def pids(self) -> Sequence[int]:
        if not self._pids:
            self._pids = self._place.family(self.run)
        return self._pids


class Plain:
    """The plain loop, a process per rank.

    Parameters
    ----------
    like
        A supervised run: its settings and its dataset serve here too.
    world
        Ranks.
    """

    def __init__(self, like: Supervised, world: int) -> None:
        self.name = "plain"
        self.turns = Turns()
        self._output = like.run.folder / "plain.jsonl"
        self._errors = like.run.folder / "logs" / "plain.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [
            str(REPOSITORY / "bench" / "plain_loop.py"),
            str(like.run.folder / "train.yaml"),
            f"--run-folder={like.run.folder}",
            "--iterations=100000",
        ]
        common = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._ranks = [
                subprocess.Popen(
                    [sys.executable, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env={**common, "RANK": str(rank)},
                )
                for rank in range(world)
            ]

    def records(self) -> Sequence[Mapping[str, float]]:
        if any(rank.poll() is not None for rank in self._ranks):
            words = self._errors.read_text(errors="replace")[-2000:]
            raise BenchError(f"a rank of the plain loop has ended:\n{words}")
        whole, _, _ = self._output.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.split(b"\n") if line]

    def pids(self) -> Sequence[int]:
        return descendants(*(rank.pid for rank in self._ranks))

    def close(self) -> None:
        """Kill its processes."""
        for rank in self._ranks:
            rank.kill()
            rank.wait()


def stop(contestant: Contestant) -> None:
    """Stop every process, workers before those who watch them."""
    signal_all(reversed(contestant.pids()), signal.SIGSTOP)


def take_turn(contestant: Contestant, seconds: float) -> None:
    """Let one contestant run for a while; the others are stopped, and so is it afterwards."""
    pids = contestant.pids()
    before, busy_before = cpu_seconds(pids), busy_seconds()
    begun = time.time()
    signal_all(pids, signal.SIGCONT)
    time.sleep(seconds)
    ended = time.time()
    stop(contestant)
    own = cpu_seconds(pids) - before
    contestant.turns.foreign.append(max(0.0, busy_seconds() - busy_before - own) / (ended - begun))
    contestant.turns.take(contestant.records(), begun, ended, own)

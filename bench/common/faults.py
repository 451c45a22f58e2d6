"""Faults made in a live run, one after the other, and how it came out of each."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from common.figures import Healed, first_after, healed
from common.places import Place
from common.processes import Deathwatch
from common.watching import BenchError, Watched

#: Iterations between recovery and the next fault: the run is steady again, and knows its pace.
SETTLE = 5
#: A recovery that takes longer has failed, in seconds.
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one fault led to."""

    healed: Healed


class Faults:
    """Breaks one run.

    Parameters
    ----------
    place
        Where it runs.
    run
        The run; it trains.
    """

    def __init__(self, place: Place, run: Watched) -> None:
        self._place = place
        self._run = run
        self._next = 0

    def kill_rank(self, phase: float) -> Found:
        """SIGKILL one rank, each time the next one, `phase` of an iteration after a commit."""
        epoch = self._settle(phase)
        ranks = self._run.ranks
        victim = ranks[self._next % len(ranks)]
        self._next += 1
        watch = Deathwatch(victim["pid"])
        os.kill(victim["pid"], signal.SIGKILL)
        died = watch.wait(10.0)
        return self._recovered(epoch, died, f"rank {victim['rank']} on {victim['node']} killed")

    def kill_node(self, phase: float) -> Found:
        """Kill a node that trains and does not coordinate, each time another one."""
        epoch = self._settle(phase)
        nodes = sorted({rank["node"] for rank in self._run.ranks} - {self._run.coordinator})
        if not nodes:
            raise BenchError("no node is left to kill")
        victim = nodes[self._next % len(nodes)]
        self._next += 1
        died = self._place.kill_node(self._run, victim)
        return self._recovered(epoch, died, f"{victim} killed")

    def _settle(self, phase: float) -> int:
        """Let the run be steady, go on to a point within an iteration; return the epoch."""
        run = self._run
        run.wait_iteration(run.iteration + SETTLE)
        recent = run.metrics[-3:]
        time.sleep(phase * sum(record["iteration_seconds"] for record in recent) / len(recent))
        return int(run.metrics[-1]["epoch"])

    def _recovered(self, epoch: int, died: float, what: str) -> Found:
        run = self._run
        run.wait_for(
            f"an iteration after {what}", lambda: first_after(run.metrics, epoch, died), seconds=PATIENCE
        )
        return Found(healed(run.events, run.metrics, epoch, died, what))

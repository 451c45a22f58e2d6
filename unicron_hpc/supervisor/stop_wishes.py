"""What an agent is asked by signals: to end, and how much time there is for it."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable

from unicron_hpc.slurm.signals import parse_signal, stopping

log = logging.getLogger(__name__)

#: Seconds between SIGTERM and SIGKILL: Slurm's KillWait, by default.
KILL_WAIT = 30.0
#: Seconds of that which the end itself may take.
FAREWELL = 10.0


class StopWishes:
    """Signals that ask this agent's job to end.

    Slurm's own SIGTERM and the batch process's word, which srun passes on only as SIGUSR1, are of one and the
    same request. Whoever sends the same signal twice does not want to wait for what the first one began.

    Parameters
    ----------
    spec
        The job's `--signal`.
    node
        This node's name.
    ask
        Asks the coordinator to end the run within so many seconds; False if it is on another node.
    end
        Ends this agent with an exit code.
    """

    def __init__(
        self,
        spec: str | None,
        node: str,
        ask: Callable[[str, float], bool],
        end: Callable[[int], None],
    ) -> None:
        self._spec = parse_signal(spec) if spec else None
        self.numbers = frozenset({*stopping(spec), signal.SIGUSR1})
        self._node = node
        self._ask = ask
        self._end = end
        self._seen: Counter[int] = Counter()
        self._reason = ""
        self._until = float("inf")

    def take(self, number: int) -> None:
        """A signal has come."""
        name = signal.Signals(number).name
        log.warning("%s received", name)
        self._seen[number] += 1
        if self._seen[number] > 1:
            self._end(128 + number)
            return
        limit = self._limit(number)
        self._reason = self._reason or f"{name} received on {self._node}"
        self._until = min(self._until, time.monotonic() + limit)
        if not self._ask(self._reason, limit):
            # The coordinator gets the same signal and says when to end; this is for when it does not.
            asyncio.get_running_loop().call_later(limit + FAREWELL, self._end, 128 + number)

    def pass_on(self) -> None:
        """The coordinator is here now: it shall know what was asked before."""
        if self._reason:
            self._ask(self._reason, max(0.0, self._until - time.monotonic()))

    def _limit(self, number: int) -> float:
        """Seconds in which the run should be over."""
        spec = self._spec
        if spec is None or number not in (spec.signal, signal.SIGUSR1):
            return KILL_WAIT - FAREWELL
        return max(0.0, spec.seconds - FAREWELL)

"""Online statistical monitoring: an iteration that takes far longer than its like."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Iterations over which the mean is taken.
WINDOW = 20


@dataclass(slots=True)
class Progress:
    """Watches the pace of one task's commits.

    Parameters
    ----------
    failure_factor
        An iteration of more than this many times the mean is a fault.
    floor
        Seconds below which nothing is called too slow.
    """

    failure_factor: float
    floor: float
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _since: float | None = None

    def begin(self, now: float) -> None:
        """A new epoch begins to compute; its first iteration is given more time."""
        self._durations.clear()
        self._since = now

    def pause(self) -> None:
        """Nothing is expected for now (a transition, or the end)."""
        self._since = None

    def committed(self, now: float) -> None:
        """An iteration was committed."""
        if self._since is not None:
            self._durations.append(now - self._since)
        self._since = now

    def shift(self, seconds: float) -> None:
        """We ourselves did not run for that long."""
        if self._since is not None:
            self._since += seconds

    @property
    def mean(self) -> float | None:
        """Mean seconds of the last iterations; None before the first."""
        return sum(self._durations) / len(self._durations) if self._durations else None

    @property
    def limit(self) -> float:
        """Seconds that the iteration under way may take."""
        mean = self.mean
        # The first iteration of an epoch has lazy initialisation in it and no mean to go by.
        return 6 * self.floor if mean is None else max(self.floor, self.failure_factor * mean)

    def late(self, now: float) -> float | None:
        """Seconds that the iteration has taken, if that is too long."""
        if self._since is None or now - self._since <= self.limit:
            return None
        return now - self._since

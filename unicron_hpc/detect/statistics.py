"""Running estimates of how long something usually takes, which single outliers do not move."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

#: Durations that make the usual one, and the last of them that are compared with it.
WINDOW, RECENT = 64, 8
#: Durations before anything is said about a change of pace.
LEAST = 3 * RECENT
#: Median absolute deviations by which the recent durations must differ: 2 are 1.35 standard deviations of a
#: normal distribution, and medians of eight vary by less than half of one.
NOISE = 2.0


@dataclass(slots=True)
class Series:
    """Durations of one thing, in seconds, the last `WINDOW` of them."""

    _values: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _slow: bool = False

    def __len__(self) -> int:
        return len(self._values)

    def add(self, seconds: float) -> None:
        """One more."""
        self._values.append(seconds)

    def clear(self) -> None:
        """What comes now is not comparable with what was."""
        self._values.clear()
        self._slow = False

    def usual(self) -> float | None:
        """Median; None while there is none."""
        return statistics.median(self._values) if self._values else None

    def slower(self, factor: float) -> float | None:
        """How many times longer than before the last `RECENT` took, once when that begins to exceed `factor`.

        It is told again only after they have come halfway back.
        """
        if len(self._values) < LEAST:
            return None
        values = list(self._values)
        before, recent = values[:-RECENT], statistics.median(values[-RECENT:])
        usual = statistics.median(before)
        spread = statistics.median(abs(value - usual) for value in before)
        if usual <= 0:
            return None
        times = recent / usual
        if self._slow:
            self._slow = times > (1 + factor) / 2
            return None
        self._slow = times >= factor and recent - usual > NOISE * spread
        return times if self._slow else None

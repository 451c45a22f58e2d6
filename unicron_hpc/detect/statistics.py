"""Running estimates of how long something usually takes, which single outliers do not move."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

#: Durations that make the usual one.
WINDOW = 64
#: A block of a trend: at least so many durations, over at least so many seconds.
BLOCK_COUNT, BLOCK_SECONDS = 4, 5.0
#: Blocks that are compared, and the fewest and the most before them. By chance the last 6 of 18 are the
#: highest once in 18,564 times; of 30, once in 593,775. A load that lasts for 5 blocks is told with the block
#: beside it if that one is higher than all before: once in 13 to 25 times.
RECENT, FEWEST, MOST = 6, 12, 24


@dataclass(slots=True)
class Series:
    """Durations of one thing, in seconds, the last `window` of them."""

    window: int = WINDOW
    _values: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self._values = deque(maxlen=self.window)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, seconds: float) -> None:
        """One more."""
        self._values.append(seconds)

    def clear(self) -> None:
        """What comes now is not comparable with what was."""
        self._values.clear()

    def usual(self) -> float | None:
        """Median; None while there is none."""
        return statistics.median(self._values) if self._values else None

    def level(self) -> float | None:
        """Mean without the highest and lowest eighth; None while there is none.

        What takes long now and then, as beside a busy neighbour, raises it; the median would not show that.
        """
        if not self._values:
            return None
        cut = len(self._values) // 8
        return statistics.fmean(sorted(self._values)[cut : len(self._values) - cut])


@dataclass(slots=True)
class Trend:
    """Whether something takes lastingly longer than before, told from noise and from passing load."""

    _block: list[float] = field(default_factory=list)
    _elapsed: float = 0.0
    _medians: deque[float] = field(default_factory=lambda: deque(maxlen=MOST + RECENT))
    _slow: bool = False

    def add(self, seconds: float, elapsed: float) -> None:
        """One more duration.

        Parameters
        ----------
        elapsed
            Seconds since the one before.
        """
        self._block.append(seconds)
        self._elapsed += elapsed
        if len(self._block) >= BLOCK_COUNT and self._elapsed >= BLOCK_SECONDS:
            self._medians.append(statistics.median(self._block))
            self._block.clear()
            self._elapsed = 0.0

    def clear(self) -> None:
        """What comes now is not comparable with what was."""
        self._block.clear()
        self._medians.clear()
        self._elapsed = 0.0
        self._slow = False

    def slower(self, factor: float) -> float | None:
        """How many times longer than before it takes, once when that begins to exceed `factor`.

        A change is one where each of the last `RECENT` blocks is above all the blocks before. It is told
        again only after the durations have come halfway back.
        """
        if len(self._medians) < FEWEST + RECENT:
            return None
        medians = list(self._medians)
        before, recent = medians[:-RECENT], medians[-RECENT:]
        usual = statistics.median(before)
        if usual <= 0:
            return None
        times = statistics.median(recent) / usual
        if self._slow:
            self._slow = times > (1 + factor) / 2
            return None
        self._slow = min(recent) > max(before) and times >= factor
        return times if self._slow else None

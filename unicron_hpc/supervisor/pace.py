"""How fast each layout of a task turned out to be, for the planner's calibration."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from unicron_hpc.planner.calibrate import Measured
from unicron_hpc.planner.layout import Layout

#: Iterations of a layout before its median counts, and how many are remembered.
LEAST, MOST = 5, 50
#: The first iterations of a layout are left out: caches fill, lazy parts start.
WARM_UP = 2


class Pace:
    """Durations of committed iterations by the shape of the layout, whatever nodes it was on."""

    def __init__(self) -> None:
        self._layouts: dict[object, Layout] = {}
        self._seconds: dict[object, deque[float]] = {}
        self._skipped: dict[object, int] = {}

    def committed(self, layout: Layout | None, seconds: float) -> None:
        """Note an iteration; 0 seconds are of an update that was applied from another rank's report."""
        if layout is None or seconds <= 0:
            return
        shape = (layout.replicas, layout.tensor)
        self._layouts[shape] = layout
        if self._skipped.setdefault(shape, 0) < WARM_UP:
            self._skipped[shape] += 1
            return
        self._seconds.setdefault(shape, deque(maxlen=MOST)).append(seconds)

    def measured(self) -> Sequence[Measured]:
        """The median of every layout that has run long enough."""
        return [
            Measured(self._layouts[shape], statistics.median(seconds))
            for shape, seconds in self._seconds.items()
            if len(seconds) >= LEAST
        ]

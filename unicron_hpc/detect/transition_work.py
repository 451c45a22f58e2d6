"""How long ranks of a node work for themselves in a transition: what one that is stuck there is known by."""

from __future__ import annotations


class TransitionWork:
    """The longest that ranks of one task have needed on this node to take a place from nothing.

    A place is work for each of its layers, and moves on from mark to mark within it: so no single step takes
    a sound rank longer than all of it took another, for as many layers.
    """

    def __init__(self) -> None:
        self._by_layer = 0.0

    def took(self, seconds: float, layers: int) -> None:
        """A rank has built a place with so many layers, and all that time may have been its own work."""
        self._by_layer = max(self._by_layer, seconds / max(layers, 1))

    def longest(self, layers: int) -> float | None:
        """Seconds that a place with so many layers takes at most; None while none has been built."""
        return self._by_layer * max(layers, 1) or None

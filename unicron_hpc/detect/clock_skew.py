"""How far a node's clock is off, as far as an exchange of signs of life can say for sure. Pure."""

from __future__ import annotations

from collections import OrderedDict

#: Seconds that a clock may be off before it is worth a warning.
LIMIT = 1.0
#: Own signs of life that are remembered; older ones give no useful bound.
REMEMBERED = 64


class Clocks:
    """Compares other clocks with one's own.

    An answer that repeats the number of a sign of life was written after that was sent and before the answer
    came, so its time, if the clocks agreed, lies between the two. What lies outside is off for certain,
    however long the messages took.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._told: set[str] = set()

    def sent(self, number: int, time: float) -> None:
        """A numbered sign of life went out at this unix time."""
        self._sent[number] = time
        while len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    def heard(self, node: str, number: int, theirs: float, ours: float) -> float | None:
        """An answer came.

        Parameters
        ----------
        number
            The last sign of life that the node had seen.
        theirs, ours
            Unix times: the node's when it answered, and our own now.

        Returns
        -------
        float or None
            Seconds by which the node's clock is ahead of ours at least (behind: negative), once for each
            node, when that is more than `LIMIT`.
        """
        sent = self._sent.get(number)
        if sent is None or not theirs or node in self._told:
            return None
        skew = max(0.0, theirs - ours) or min(0.0, theirs - sent)
        if abs(skew) <= LIMIT:
            return None
        self._told.add(node)
        return skew

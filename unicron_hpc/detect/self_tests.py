"""What the self-tests of all ranks say together: which node is slow, broken, or badly connected. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, median_low

from unicron_hpc.detect.severity import Blame, Finding, Severity

WRONG_PRODUCT = Finding("node computes wrongly", Severity.SEV1, Blame.NODE)
DAMAGED_MESSAGE = Finding("messages arrive damaged", Severity.INFO, Blame.NETWORK)
SLOW_PRODUCT = Finding("node computes slowly", Severity.INFO, Blame.NOBODY)
SLOW_LINK = Finding("slow connection", Severity.INFO, Blame.NETWORK)

#: A node or a connection stands out if it takes this many times the median and this many seconds more. Even
#: the fastest exchange needs two processes awake at once: with three busy ones to a core it came to 17 ms.
FACTOR = 4.0
PRODUCT_MARGIN, LINK_MARGIN = 0.005, 0.025


@dataclass(frozen=True, slots=True)
class Link:
    """What one rank found out about its connection to another.

    Attributes
    ----------
    rank, peer
        The two.
    seconds, intact
        Its fastest exchange, and whether all that came was as it had been sent.
    """

    rank: int
    peer: int
    seconds: float
    intact: bool = True


@dataclass(frozen=True, slots=True)
class Results:
    """The tests of all ranks of a layout.

    Attributes
    ----------
    nodes
        The node of every rank.
    products
        Seconds of every rank's product.
    wrong
        Ranks whose product was wrong.
    links
        Every rank's connections.
    """

    nodes: Mapping[int, str]
    products: Mapping[int, float]
    wrong: frozenset[int]
    links: tuple[Link, ...]

    def node_products(self) -> dict[str, float]:
        """Each node's fastest product, in seconds: a busy core slows one rank down, a slow node all."""
        return {
            node: min(s for rank, s in self.products.items() if self.nodes[rank] == node)
            for node in sorted({self.nodes[rank] for rank in self.products})
        }

    def node_links(self) -> dict[tuple[str, str], float]:
        """The fastest exchange between each two nodes, in seconds."""
        found: dict[tuple[str, str], float] = {}
        for link in self.links:
            pair = self._pair(link)
            if pair[0] != pair[1]:
                found[pair] = min(link.seconds, found.get(pair, link.seconds))
        return found

    def damaged(self) -> set[tuple[str, str]]:
        """Pairs of nodes (also a node with itself) between which something was damaged."""
        return {self._pair(link) for link in self.links if not link.intact}

    def _pair(self, link: Link) -> tuple[str, str]:
        first, second = sorted((self.nodes[link.rank], self.nodes[link.peer]))
        return first, second


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node, or an unnamed one of two, and what speaks against it."""

    nodes: tuple[str, ...]
    finding: Finding
    detail: str


def judge(tested: Results) -> list[Suspect]:
    """Who stands out; nobody where that is not clear.

    A node is named for its connections if all of them, and no others, are bad: each one has another end that
    is well connected elsewhere. A single bad connection names both ends. Of two nodes neither can stand out
    from the median, nor can more than half of all.
    """
    found = [
        Suspect((tested.nodes[rank],), WRONG_PRODUCT, f"rank {rank} multiplied two matrices wrongly")
        for rank in sorted(tested.wrong)
    ]
    found += _slow_products(tested.node_products())
    links = tested.node_links()
    damaged = tested.damaged()
    if damaged:
        found.append(_of_links(DAMAGED_MESSAGE, damaged, set(links), "what was received differs"))
    usual = median_low(links.values()) if links else 0.0
    slow = {pair for pair, seconds in links.items() if _stands_out(seconds, usual, LINK_MARGIN)}
    if slow:
        worst = max(links[pair] for pair in slow)
        found.append(
            _of_links(SLOW_LINK, slow, set(links), f"{worst * 1e3:.1f} ms, usual are {usual * 1e3:.1f} ms")
        )
    return found


def _slow_products(products: Mapping[str, float]) -> list[Suspect]:
    usual = median(products.values())
    return [
        Suspect(
            (node,), SLOW_PRODUCT, f"{seconds * 1e3:.1f} ms for a product, usual are {usual * 1e3:.1f} ms"
        )
        for node, seconds in products.items()
        if _stands_out(seconds, usual, PRODUCT_MARGIN)
    ]


def _of_links(
    finding: Finding, bad: set[tuple[str, str]], links: set[tuple[str, str]], detail: str
) -> Suspect:
    """Whom bad connections point to: the one node that all of them have in common, if it has no good one."""
    text = f"{', '.join('-'.join(pair) for pair in sorted(bad))}: {detail}"
    common = set.intersection(*(set(pair) for pair in bad))
    guilty = [node for node in common if not any(node in pair for pair in links - bad)]
    if len(guilty) == 1 and (len(bad) > 1 or len(common) == 1):
        return Suspect((guilty[0],), finding, text)
    return Suspect(tuple(sorted({node for pair in bad for node in pair})), finding, text)


def _stands_out(seconds: float, usual: float, margin: float) -> bool:
    return seconds > FACTOR * usual and seconds > usual + margin

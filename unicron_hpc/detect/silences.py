"""Silences that are no sign of a failure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from unicron_hpc.detect.reports import Report, Sign

#: What the table calls a file server that does not answer.
_STORAGE = "network file system slow"


class Excuses:
    """Who may be silent, and when.

    Whoever said that it would be busy and not that it is done, whoever was heard of again before anybody
    missed it, and whoever waits for the file system that other nodes wait for, too.

    Parameters
    ----------
    reports
        All of the incident, in order of time.
    nodes
        Where ranks run.
    missed
        When the first rank complained.
    """

    def __init__(self, reports: Sequence[Report], nodes: Mapping[int, str], missed: float) -> None:
        self._missed = missed
        self._storage = _stalled(reports, nodes)
        self._signs: dict[int | str, list[Report]] = defaultdict(list)
        for report in reports:
            if report.sign in (Sign.SECTION, Sign.SECTION_OVER, Sign.ALIVE):
                self._signs[_who(report)].append(report)

    def excuse(self, silence: Report) -> bool:
        """Whether a report of a silence says nothing."""
        who = _who(silence)
        if silence.time >= self._storage.get(who, math.inf):
            return True
        busy = False
        for report in self._signs.get(who, ()):
            if report.sign is Sign.ALIVE:
                if silence.time <= report.time < self._missed:
                    return True
            elif report.time <= silence.time:
                busy = report.sign is Sign.SECTION
        return busy


def _stalled(reports: Iterable[Report], nodes: Mapping[int, str]) -> dict[int | str, float]:
    """Since when whom the shared file system keeps waiting: nobody, unless several nodes say so."""
    since: dict[int | str, float] = {}
    for report in reports:
        if report.finding is None or report.finding.error != _STORAGE:
            continue
        node = report.node or nodes.get(-1 if report.rank is None else report.rank, "")
        if place := node or report.rank:
            since.setdefault(place, report.time)
    if len(since) < 2:
        return {}
    return since | {rank: since[node] for rank, node in nodes.items() if node in since}


def _who(report: Report) -> int | str:
    """The rank that it is about, else the node."""
    return report.node if report.rank is None else report.rank

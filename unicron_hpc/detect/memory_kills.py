"""Deaths that a kill for want of memory explains."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from unicron_hpc.detect.exits import HOST_MEMORY, KILLED
from unicron_hpc.detect.reports import Report, Sign

#: Seconds between a SIGKILL and the counter or kernel record that explains it, either way.
MEMORY_WINDOW = 10.0
#: What a process's end is called that such a kill explains.
KILLS = (KILLED, "data loader worker killed")


def with_memory_kills(reports: list[Report], nodes: Mapping[int, str]) -> list[Report]:
    """The reports, with deaths by SIGKILL explained by kills for want of memory on the same node.

    A kill of a rank that nobody else reported is that rank's death.
    """

    def explains(kill: Report, death: Report) -> bool:
        node = death.node or nodes.get(-1 if death.rank is None else death.rank, "")
        return (
            abs(kill.time - death.time) <= MEMORY_WINDOW
            and (not node or not kill.node or kill.node == node)
            and (kill.rank is None or kill.rank == death.rank)
        )

    kills = [report for report in reports if report.sign is Sign.MEMORY_KILL]
    deaths = [r for r in reports if r.finding is not None and r.finding.error in KILLS]
    explained = {death for death in deaths if any(explains(kill, death) for kill in kills)}
    explained |= {k for k in kills if k.rank is not None and not any(explains(k, death) for death in deaths)}
    return [
        msgspec.structs.replace(report, finding=HOST_MEMORY, sign=Sign.FAULT, vague=False)
        if report in explained
        else report
        for report in reports
    ]

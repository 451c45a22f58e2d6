"""Puts the self-tests of a new epoch's ranks together and tells whom they point to."""

from __future__ import annotations

import asyncio
import time

from unicron_hpc.detect.self_tests import Link, Results, Suspect, judge
from unicron_hpc.detect.severity import Method
from unicron_hpc.planner.layout import Layout
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.messages import Noticed
from unicron_hpc.supervisor.seats import Seats


def tell_self_tests(task: str, epoch: int, layout: Layout, seats: Seats, hub: Hub) -> None:
    """Journal what the ranks of `layout` have found out about themselves, if they were asked to.

    A node that is named alone is told of like any other finding about a node, once the caller is through with
    what it does; of two that are named together one may be well.
    """
    tests = {
        rank: process.report.self_test
        for rank, seat in enumerate(layout.seats)
        if (process := seats.get(seat)) and process.report and process.report.self_test
    }
    if len(tests) < len(layout.seats):
        return
    tested = Results(
        nodes={rank: seat.node for rank, seat in enumerate(layout.seats)},
        products={rank: test.gemm_seconds for rank, test in tests.items()},
        wrong=frozenset(rank for rank, test in tests.items() if not test.right),
        links=tuple(
            Link(rank, exchange.peer, exchange.seconds, exchange.intact)
            for rank, test in tests.items()
            for exchange in test.exchanges
        ),
    )
    suspects = judge(tested)
    hub.journal.write(
        "node_checked",
        epoch,
        task=task,
        seconds=max(test.seconds for test in tests.values()),
        product_seconds=tested.node_products(),
        exchange_seconds={"-".join(pair): seconds for pair, seconds in tested.node_links().items()},
        suspects=[_shown(suspect) for suspect in suspects],
    )
    for suspect in suspects:
        if len(suspect.nodes) == 1:
            noticed = Noticed(suspect.finding, Method.NODE_HEALTH, suspect.detail, time.time())
            asyncio.get_running_loop().call_soon(hub.on_noticed, suspect.nodes[0], noticed)


def _shown(suspect: Suspect) -> dict[str, object]:
    return {"nodes": list(suspect.nodes), "error": suspect.finding.error, "evidence": suspect.detail}

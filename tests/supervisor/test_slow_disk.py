"""A run folder that hangs must not make its coordinator look dead."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.supervisor.events import within
from tests.supervisor.test_unfit_nodes import NODES, Job
from unicron_hpc.detect.node_checks import MEMORY_SHORT
from unicron_hpc.detect.severity import Method
from unicron_hpc.report.journal import EVENTS
from unicron_hpc.supervisor.messages import Beat, Noticed


def test_signs_of_life_go_on_while_nothing_can_be_journaled(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / EVENTS)  # nobody reads it: writes hang after 64 kB

    async def work() -> None:
        job = Job(tmp_path)
        for node in NODES:
            job.join(node)
        for _ in range(100):
            job.coordinator.handle("n2", Noticed(MEMORY_SHORT, Method.NODE_HEALTH, "x" * 2000, 1.0))
        assert not job.coordinator._board.journal.flush_file(0.05)
        job.coordinator.tick(time.monotonic())
        assert {node for node, body in job.sent if body == Beat(1)} == set(NODES)
        with open(tmp_path / EVENTS, "rb") as disk:  # it answers again, and nothing is missing
            lines = [disk.readline() for _ in range(100)]
        assert all(line.endswith(b"\n") for line in lines)
        job.coordinator.close()

    within(work())

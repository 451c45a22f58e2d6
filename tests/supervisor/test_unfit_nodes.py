"""Nodes that cannot work are found when they join, and get no work."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.slurm.settings_for_tests import settings
from tests.supervisor.events import within
from unicron_hpc.detect.node_checks import GPU_MISSING, MEMORY_SHORT
from unicron_hpc.detect.severity import Finding, Method
from unicron_hpc.report.journal import EVENTS, read_lines
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.coordinator import Coordinator
from unicron_hpc.supervisor.messages import (
    Body,
    DataReady,
    Finish,
    Heartbeat,
    JobSnapshot,
    Join,
    Noticed,
    Role,
    StartRank,
)
from unicron_hpc.supervisor.node_health import NodeHealth

NODES = ("n1", "n2", "n3")


class Job:
    """Two active nodes and a spare; n1 coordinates. What is sent to agents is noted."""

    def __init__(self, folder: Path, nodes: tuple[str, ...] = NODES) -> None:
        self.folder = folder
        self.nodes = nodes
        self.sent: list[tuple[str, Body]] = []
        self.coordinator = self.coordinating("n1", None)
        self.coordinator.start(1)

    def coordinating(self, node: str, snapshot: JobSnapshot | None) -> Coordinator:
        return Coordinator(
            run_folder=self.folder,
            node=node,
            settings=settings("slurm.nodes=2", f"slurm.spares={len(self.nodes) - 2}", run_dir=self.folder),
            allocation=Allocation("17", self.nodes, 2, 1),
            snapshot=snapshot,
            predecessor=snapshot.coordinator if snapshot else None,
            post=lambda node, body: self.sent.append((node, body)),
            forget=lambda node: None,
            learn=lambda addresses: None,
            witness=lambda absent: False,
        )

    def succeed(self, node: str) -> None:
        """The coordinator's node dies before training has begun."""
        told = [body for to, body in self.sent if to == node and isinstance(body, JobSnapshot)]
        self.coordinator.close()
        self.coordinator = self.coordinating(node, told[-1])
        self.coordinator.start(2)

    def join(self, node: str, *findings: Finding) -> None:
        noticed = tuple(Noticed(finding, Method.NODE_HEALTH, "seen", 1.0) for finding in findings)
        address = f"tcp://{node}:1"
        self.coordinator.handle(node, Join(address, 5, 1, 0, True, (), (), noticed))

    def begin(self) -> None:
        self.coordinator.tick(time.monotonic())
        self.coordinator.handle("n1", DataReady("tiny"))
        self.coordinator.tick(time.monotonic())

    async def started(self) -> set[str]:
        while not (nodes := {node for node, body in self.sent if isinstance(body, StartRank)}):
            await asyncio.sleep(0)
        return nodes

    def events(self, kind: str) -> list[dict[str, object]]:
        assert self.coordinator._board.journal.flush_file(10.0)
        return [event for event in read_lines(self.folder / EVENTS) if event["type"] == kind]


@pytest.mark.parametrize("first", NODES)
def test_a_spare_stands_in_for_a_node_that_joins_without_its_gpus_whoever_joins_first(
    tmp_path: Path, first: str
) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        for node in (first, *(node for node in NODES if node != first)):
            job.join(node, *((GPU_MISSING,) if node == "n2" else ()))
        job.begin()
        assert await job.started() == {"n1", "n3"}
        (lost,) = job.events("agent_lost")
        assert (lost["node"], lost["reason"]) == ("n2", "seen")
        assert any(node == "n2" and isinstance(body, Finish) for node, body in job.sent)
        job.coordinator.close()

    within(work())


def test_a_warning_at_joining_is_journaled_once_and_costs_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        for node in (*NODES, "n2"):
            job.join(node, *((MEMORY_SHORT,) if node == "n2" else ()))
        job.begin()
        assert await job.started() == {"n1", "n2"}
        (warning,) = job.events("node_warning")
        assert (warning["node"], warning["error"]) == ("n2", MEMORY_SHORT.error)
        job.coordinator.close()

    within(work())


def test_a_clock_that_is_off_is_journaled(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        for node in NODES:
            job.join(node)
        job.coordinator.tick(time.monotonic())  # the first beat
        for node, skew in (("n2", 0.0), ("n3", -90.0)):
            job.coordinator.handle(node, Heartbeat(True, 1, (), time.time() + skew))
        (warning,) = job.events("node_warning")
        assert warning["node"] == "n3"
        assert "behind n1" in str(warning["evidence"])
        job.coordinator.close()

    within(work())


def test_a_node_tells_of_a_finding_once_until_it_has_gone_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").write_text("no folder")
    health = NodeHealth(tmp_path, settings(run_dir=tmp_path), 1, lambda body: None)

    def errors() -> list[str]:
        return [noticed.finding.error for noticed in within(health.check())]

    assert errors() == ["run folder not writable"]
    assert errors() == []
    (tmp_path / "logs").unlink()
    (tmp_path / "logs").mkdir()
    assert errors() == []
    (tmp_path / "logs").rmdir()
    assert errors() == ["run folder not writable"]


@pytest.mark.parametrize(("device", "errors"), [("cuda", ["GPU missing"]), ("cpu", [])])
def test_gpus_are_counted_against_what_slurm_says_where_the_training_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, errors: list[str]
) -> None:
    (tmp_path / "logs").mkdir()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 00000000:1B:00.0'\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, text in {"JOB_ID": "17", "JOB_NODELIST": "n1", "GPUS_ON_NODE": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", text)
    health = NodeHealth(tmp_path, settings(f"train.device={device}", run_dir=tmp_path), 1, lambda body: None)
    assert [noticed.finding.error for noticed in within(health.check())] == errors
    assert health.buses == (("00000000:1b:00.0",) if device == "cuda" else None)


def test_a_nodes_own_state_is_looked_at_again_when_another_is_lost(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path)
        told: list[Body] = []
        news = asyncio.Event()

        def report(body: Body) -> None:
            told.append(body)
            news.set()

        health = NodeHealth(tmp_path, settings(run_dir=tmp_path), 1, report)
        for node in NODES:
            job.join(node)
        health.on_snapshot(job.coordinator._board.snapshot())
        assert health._again is None
        job.coordinator._board.members.get("n2").role = Role.LOST  # type: ignore[union-attr]
        health.on_snapshot(job.coordinator._board.snapshot())
        await news.wait()
        assert [body.finding.error for body in told if isinstance(body, Noticed)] == [
            "run folder not writable"
        ]
        job.coordinator.close()

    within(work())


def test_a_successor_before_the_start_knows_of_it_too(tmp_path: Path) -> None:
    async def work() -> None:
        job = Job(tmp_path, ("n1", "n2", "n3", "n4", "n5"))
        for node in job.nodes:
            job.join(node, *((GPU_MISSING,) if node == "n2" else ()))
        job.succeed("n3")
        for node in job.nodes[1:]:
            job.join(node, *((GPU_MISSING,) if node == "n2" else ()))
            job.join(node, *((GPU_MISSING,) if node == "n2" else ()))  # again, since it is warm now
        job.coordinator.tick(time.monotonic())
        job.coordinator.handle("n3", DataReady("tiny"))
        job.coordinator.tick(time.monotonic())
        assert await job.started() == {"n3", "n4"}
        assert [event["node"] for event in job.events("agent_lost")] == ["n1", "n2"]
        job.coordinator.close()

    within(work())

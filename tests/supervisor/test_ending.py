"""The end of a run: told in the run folder, and to every agent, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.events import within
from unicron_hpc.config import RecoverySettings
from unicron_hpc.report.journal import EVENTS, METRICS, SUMMARY, Journal, read_lines
from unicron_hpc.supervisor import ending
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.commit_log import CommitLog
from unicron_hpc.supervisor.draining import Drains
from unicron_hpc.supervisor.ending import DETAIL, Ending
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import Body, Finish, Role

NODES = ("n1", "n2", "n3", "n4")
#: n4 has never joined.
JOINED = NODES[:3]


class Run:
    """A run of four nodes; n1 coordinates. What is sent to agents is noted."""

    def __init__(self, folder: Path, *, batch_node: str = "n1", coordinator: str = "n1") -> None:
        self.folder = folder
        allocation = Allocation("17", NODES, 3, 1, batch_node)
        self.members = Members(NODES, 3)
        for name in JOINED:
            self.heard(name, time.monotonic())
        self.journal = Journal(folder)
        self.drains = Drains(allocation, self.journal, RecoverySettings(drain=False), folder)
        self.sent: list[tuple[str, Body]] = []
        self.over = asyncio.Event()
        self.coordinator = coordinator
        self.ending = Ending(
            run_folder=folder,
            allocation=allocation,
            members=self.members,
            journal=self.journal,
            commits=CommitLog(folder),
            drains=self.drains,
            node=coordinator,
            post=self.post,
            started=time.time() - 60,
        )

    def heard(self, name: str, moment: float) -> None:
        node = self.members.get(name)
        assert node is not None
        node.heard = moment

    def lose(self, name: str) -> None:
        node = self.members.get(name)
        assert node is not None
        node.role = Role.LOST

    def post(self, node: str, body: Body) -> None:
        self.sent.append((node, body))
        if node == self.coordinator:
            self.over.set()

    def end(self, exit_code: int = 0, state: str = "finished", cause: str = "", detail: str = "") -> None:
        self.ending.end(epoch=4, exit_code=exit_code, state=state, cause=cause, detail=detail)

    def told(self) -> list[str]:
        return [node for node, _ in self.sent]

    def summary(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / SUMMARY).read_text())
        return content


def test_how_it_ended_is_in_the_journal_and_in_the_summary(tmp_path: Path) -> None:
    async def work() -> None:
        run = Run(tmp_path)
        run.end(1, "failed", "out of memory", "x" * (DETAIL + 100) + "the last line")
        await run.over.wait()
        (told,) = [event for event in read_lines(tmp_path / EVENTS) if event["type"] == "job_finished"]
        assert (told["state"], told["exit_code"], told["cause"], told["epoch"]) == (
            "failed", 1, "out of memory", 4,
        )  # fmt: skip
        assert told["detail"].endswith("the last line")
        assert len(told["detail"]) == DETAIL
        summary = run.summary()
        assert (summary["state"], summary["exit_code"], summary["cause"]) == ("failed", 1, "out of memory")
        assert summary["wall_seconds"] >= 60

    within(work())


def test_everybody_who_is_there_is_sent_home_and_the_coordinator_last(tmp_path: Path) -> None:
    async def work() -> None:
        run = Run(tmp_path)
        run.lose("n3")
        run.end(1, "failed", "out of memory")
        assert run.told() == ["n2"]  # the lost and the never seen are not there to be told
        await run.over.wait()
        assert run.told() == ["n2", "n1"]
        assert {body for _, body in run.sent} == {Finish(1, "out of memory")}

    within(work())


def test_a_run_that_has_no_cause_to_name_gives_its_state_as_the_reason(tmp_path: Path) -> None:
    async def work() -> None:
        run = Run(tmp_path)
        run.end()
        await run.over.wait()
        assert {body for _, body in run.sent} == {Finish(0, "finished")}

    within(work())


def test_a_summary_that_cannot_be_written_keeps_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        run = Run(tmp_path)
        (tmp_path / SUMMARY).mkdir()
        run.end()
        await run.over.wait()
        assert sorted(run.told()) == ["n1", "n2", "n3"]

    within(work())


@pytest.mark.parametrize("line", ["{}", '{"task": "a", "iteration": "x", "iteration_seconds": 1}'])
def test_a_record_that_no_summary_can_be_made_of_keeps_nobody(tmp_path: Path, line: str) -> None:
    async def work() -> None:
        run = Run(tmp_path)
        (tmp_path / METRICS).write_text(f"{line}\n")
        run.end()
        await run.over.wait()
        assert sorted(run.told()) == ["n1", "n2", "n3"]

    within(work())


class TestWithoutTheBatchNode:
    @pytest.fixture
    def ended(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
        """Jobs that Slurm was asked to end (a real slurmctld is asked in tests/cluster)."""
        jobs: list[tuple[str, int]] = []
        monkeypatch.setattr(ending, "_end_orphaned_job", lambda job, code: jobs.append((job, code)))
        return jobs

    def test_the_coordinator_ends_the_job_as_its_last_act(
        self, tmp_path: Path, ended: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ending, "LEAVE_GRACE", 3600.0)

        async def work() -> None:
            run = Run(tmp_path, coordinator="n2")
            run.lose("n1")
            run.heard("n2", time.monotonic() + 3600)  # its own agent speaks until the end
            run.heard("n3", time.monotonic() - 60)
            run.end(1, "failed", "out of memory")
            await run.over.wait()
            assert run.told() == ["n3", "n2"]
            assert ended == [("17", 1)]

        within(work())

    def test_it_waits_for_agents_that_still_speak(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ending, "GONE", 0.05)
        moments: list[float] = []
        monkeypatch.setattr(ending, "_end_orphaned_job", lambda *_: moments.append(time.monotonic()))

        async def work() -> None:
            run = Run(tmp_path, coordinator="n2")
            run.lose("n1")
            last_word = time.monotonic() + 0.1
            run.heard("n3", last_word)
            run.end()
            await run.over.wait()
            (moment,) = moments
            assert moment >= last_word + 0.05

        within(work())

    def test_but_not_for_ever(
        self, tmp_path: Path, ended: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ending, "LEAVE_GRACE", 0.0)

        async def work() -> None:
            run = Run(tmp_path, coordinator="n2")
            run.lose("n1")
            run.heard("n3", time.monotonic() + 3600)
            run.end()
            await run.over.wait()
            assert ended == [("17", 0)]

        within(work())

    def test_while_it_lives_the_batch_process_ends_the_job(
        self, tmp_path: Path, ended: list[tuple[str, int]]
    ) -> None:
        async def work() -> None:
            run = Run(tmp_path, coordinator="n2")
            run.end()
            await run.over.wait()
            assert ended == []

        within(work())

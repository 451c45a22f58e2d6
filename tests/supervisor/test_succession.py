"""What a new coordinator knows of what its predecessor had begun: trials, budgets, histories, drains."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.supervisor.events import within
from tests.supervisor.lone_coordinator import LoneJob
from unicron_hpc.detect.severity import Blame, Finding, Severity
from unicron_hpc.slurm import job_end
from unicron_hpc.slurm.drain import DrainResult
from unicron_hpc.supervisor import draining
from unicron_hpc.supervisor.coordinator import Coordinator
from unicron_hpc.supervisor.messages import Heartbeat

XID = Finding("Xid 79", Severity.SEV1, Blame.NODE)

#: A lost node is drained this much later.
QUICK = ("recovery.node_timeout=1", "recovery.heartbeat_interval=0.25")


class Slurm:
    """Drains what it is asked to; while it is `busy`, nobody gets an answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.idle = threading.Event()
        self.idle.set()
        monkeypatch.setattr(draining, "drain", self._drain)
        monkeypatch.setattr(job_end, "wanted", lambda job, node: "")

    def _drain(self, node: str, reason: str, nodes: Sequence[str], *, job_id: str) -> DrainResult:
        self.asked.append(node)
        self.idle.wait(20.0)
        return DrainResult(False, "told so", node, reason)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


async def succeeded(job: LoneJob, node: str) -> None:
    """The coordinator's node is lost; `node` takes over, and the job runs again."""
    job.succeed(node)
    await job.running()


async def recovered(job: LoneJob) -> None:
    await job.running()
    job.commit()


async def answered(job: LoneJob, node: str) -> None:
    await job.until(lambda: node in [event["node"] for event in job.events("drain_result")])


class TestANodeOnTrial:
    def test_is_drained_by_a_successor_when_training_goes_on_without_it(
        self, tmp_path: Path, slurm: Slurm
    ) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, active=3, spares=3, on_slurm=True) as job:
                for _ in range(4):
                    job.dies("n2")
                    await job.running()
                assert job.rules[-1] == ("n2", "new processes do not help")
                await succeeded(job, "n5")
                assert "n2" not in slurm.asked
                job.commit()
                await answered(job, "n2")
                assert slurm.asked.count("n2") == 1
                (requested,) = [e for e in job.events("drain_requested") if e["node"] == "n2"]
                assert requested["reason"] == "killed (SIGKILL)"
                assert [event["incident"] for event in job.events("incident_closed")] == [1]

        within(work())

    def test_is_innocent_if_the_error_comes_again_elsewhere_under_a_successor(
        self, tmp_path: Path, slurm: Slurm
    ) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, active=3, spares=3, on_slurm=True) as job:
                for _ in range(4):
                    job.dies("n2", -11)
                    await job.running()
                await succeeded(job, "n5")
                job.dies("n4", -11)  # the spare that took its seat
                await job.until(lambda: job.cause is not None)
                assert job.rules[-1] == ("n4", "follows the program")
                assert "n2" not in slurm.asked

        within(work())


class TestADrain:
    def test_without_an_answer_is_asked_for_again_by_a_successor(self, tmp_path: Path, slurm: Slurm) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, active=3, spares=3, on_slurm=True) as job:
                slurm.idle.clear()
                job.notices("n2", XID)
                await job.until(lambda: slurm.asked == ["n2"])
                await recovered(job)
                job.succeed("n5")
                slurm.idle.set()
                await answered(job, "n2")
                assert slurm.asked.count("n2") == 2

        within(work())

    def test_that_was_answered_is_not_asked_for_again(self, tmp_path: Path, slurm: Slurm) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, *QUICK, active=3, spares=3, on_slurm=True) as job:
                slurm.idle.clear()
                job.notices("n2", XID)
                await recovered(job)
                slurm.idle.set()
                await job.until(lambda: job.coordinator._board._drains.owed == ())
                await succeeded(job, "n5")
                job.commit()
                await answered(job, "n1")  # begun by the successor, after all that it owed
                assert slurm.asked == ["n2", "n1"]

        within(work())

    def test_that_two_coordinators_did_not_live_to_see_is_the_thirds(
        self, tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, active=3, spares=3, on_slurm=True) as job:
                slurm.idle.clear()
                job.notices("n2", XID)
                await job.until(lambda: slurm.asked == ["n2"])
                with monkeypatch.context() as dying:
                    dying.setattr(Coordinator, "tick", lambda self, now: None)  # it never comes to decide
                    job.succeed("n5")
                job.succeed("n6")
                slurm.idle.set()
                await answered(job, "n2")

        within(work())

    def test_of_a_lost_node_waits_anew_whether_others_go_silent(self, tmp_path: Path, slurm: Slurm) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, *QUICK, active=4, spares=3, on_slurm=True) as job:
                board = job.coordinator._board
                for name in job.nodes:
                    if name != "n2":
                        job.coordinator.handle(name, Heartbeat(True, 0))
                silent = board.members.get("n2")
                assert silent is not None
                assert silent.heard is not None
                silent.heard -= 5.0
                now = max(node.heard or 0.0 for node in board.members)
                job.coordinator.tick(now)
                assert job.lost == ["n2"]
                await succeeded(job, "n5")
                await answered(job, "n2")
                await answered(job, "n1")
                assert sorted(slurm.asked) == ["n1", "n2"]

        within(work())


class TestBudgets:
    def test_restarts_and_attempts_go_on_where_they_were(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, active=3, spares=3) as job:
                for _ in range(3):
                    job.dies("n2")
                    await job.running()
                await succeeded(job, "n5")
                job.dies("n2")
                assert job.rules[-1] == ("n2", "new processes do not help")
                await recovered(job)
                (closed,) = job.events("incident_closed")
                assert closed["incident"] == 1
                assert closed["attempts"] == 5  # one for each death, and one for the coordinator's
                assert closed["failed_node"] == "n2"

        within(work())

    def test_a_nodes_history_goes_on(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, "recovery.max_faults_per_node=2", active=3, spares=3) as job:
                for successor in ("n5", "n6"):
                    job.dies("n2")
                    await recovered(job)
                    await succeeded(job, successor)
                    job.commit()
                job.dies("n2")
                assert job.rules[-1] == ("n2", "again and again on this node")

        within(work())

    def test_an_incident_that_was_over_stays_so(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, active=3, spares=3) as job:
                job.dies("n2")
                await recovered(job)
                await succeeded(job, "n5")
                job.commit()
                assert [event["incident"] for event in job.events("incident_closed")] == [1, 2]

        within(work())


@settings(max_examples=8, deadline=None)
@example(["n2"] * 7 + ["n3"] * 2, [8])
@given(
    st.lists(st.sampled_from(["n2", "n3", "commit"]), min_size=3, max_size=9),
    st.lists(st.integers(0, 8), min_size=1, max_size=2, unique=True),
)
def test_what_is_done_about_faults_does_not_depend_on_who_coordinates(
    story: list[str], changes: list[int]
) -> None:
    async def told(folder: Path, changes: Sequence[int]) -> list[tuple[str, str]]:
        successors = iter(("n5", "n6"))
        words = ("recovery.max_faults_per_node=2", "recovery.max_restarts_per_rank=2")
        async with LoneJob(folder, *words, active=3, spares=4) as job:
            for number, what in enumerate(story):
                if number in changes:
                    await succeeded(job, next(successors))
                if what == "commit":
                    job.commit()
                elif what not in job.lost:
                    job.dies(what)
                    await job.running()
                # The program's fault ends the run a moment later, since an earlier one may still be told;
                # a successor in between decides it again.
                if job.coordinator._board.over or job.rules[-1:] == [(what, "follows the program")]:
                    break
            return [(node, rule) for node, rule in job.rules if node in ("n2", "n3")]

    found = []
    for which in ((), changes):
        with tempfile.TemporaryDirectory() as folder:
            found.append(within(told(Path(folder), which), 60.0))
    assert found[0] == found[1]

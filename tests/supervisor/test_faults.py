"""Faults in a job whose ranks are simulated: what is replaced, who is blamed, what a late report changes."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.events import within
from tests.supervisor.lone_coordinator import LoneJob
from unicron_hpc.detect.exits import HOST_MEMORY
from unicron_hpc.detect.severity import Blame, Finding, Severity
from unicron_hpc.runtime.orders import Holdings, Phase
from unicron_hpc.supervisor import faults
from unicron_hpc.supervisor.messages import Heartbeat
from unicron_hpc.supervisor.rank_messages import RankHeld

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BROKEN = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"
WRONG = "ValueError: shapes do not fit"
GUESS = "RuntimeError: the two halves must have the same size"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
XID = Finding("Xid 79", Severity.SEV1, Blame.NODE)


async def recovered(job: LoneJob) -> None:
    await job.running()
    job.commit()


class TestAProcessThatEnds:
    def test_is_replaced_and_its_incident_says_how_long_each_part_took(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                old = job.dies("n2")
                await recovered(job)
                assert job.on("n2") != old
                assert job.rules == [("n2", "new process")]
                assert job.lost == []
                (closed,) = job.events("incident_closed")
                parts = closed["recovery_seconds"] + closed["commit_seconds"]
                assert closed["seconds"] == pytest.approx(parts)
                assert 0 <= closed["detection_seconds"] <= closed["seconds"]
                assert job.verdicts == [(1, [1], ["n2"], "killed (SIGKILL)", False)]

        within(work())

    def test_again_and_again_without_progress_has_its_node_out_on_trial(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, on_slurm=True) as job:
                for _ in range(4):
                    job.dies("n2")
                    await job.running()
                assert job.rules[-1] == ("n2", "new processes do not help")
                assert job.lost == ["n2"]
                assert "n2" in job.told_to_leave
                assert job.events("drain_requested") == []  # not before training goes on without it
                job.commit()
                await job.until(lambda: bool(job.events("drain_result")))
                assert [event["node"] for event in job.events("drain_requested")] == ["n2"]

        within(work())

    def test_for_the_same_error_on_the_next_node_was_the_programs_doing(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, on_slurm=True) as job:
                for _ in range(4):
                    job.dies("n2", -11)
                    await job.running()
                assert job.lost == ["n2"]
                job.dies("n4", -11)  # the spare that took its seat
                await job.until(lambda: job.cause is not None)
                assert job.cause == "crashed (SIGSEGV) in rank 1 on n4"
                assert job.rules[-1] == ("n4", "follows the program")
                assert job.lost == ["n2"]
                assert job.events("drain_requested") == []

        within(work())


class TestANodesHistory:
    def test_of_mended_faults_has_it_out_in_the_end(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, "recovery.max_faults_per_node=2") as job:
                for _ in range(3):
                    assert job.lost == []
                    job.dies("n2")
                    await recovered(job)
                assert job.rules[-1] == ("n2", "again and again on this node")
                assert job.lost == ["n2"]

        within(work())

    def test_is_not_held_against_it_when_others_fail_with_it(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, "recovery.max_faults_per_node=2") as job:
                for _ in range(2):
                    job.dies("n2")
                    await recovered(job)
                job.dies("n1")
                job.dies("n2")
                await recovered(job)
                assert job.lost == []
                job.dies("n2")
                assert job.lost == ["n2"]

        within(work())

    def test_says_nothing_where_all_nodes_failed_together(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path, "recovery.max_faults_per_node=2") as job:
                for _ in range(4):
                    for node in ("n1", "n2", "n3"):
                        job.dies(node)
                    await recovered(job)
                assert job.lost == []

        within(work())


class TestAFaultOfTheProgram:
    def test_ends_the_run_with_the_first_failing_ranks_words_whoever_was_heard_first(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                now = time.time()
                job.raises("n3", WRONG, when=now)
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # nothing is concluded at once
                job.raises("n2", WRONG, when=now - 0.05)
                await job.until(lambda: job.cause is not None)
                assert job.cause == "error of the program in rank 1 on n2"
                assert job.lost == []
                assert "Traceback of n2" in capfd.readouterr().err
                assert job.stopped == []

        within(work())

    def test_is_not_waited_for_longer_when_all_have_spoken(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                begun = time.monotonic()
                for node in ("n1", "n2", "n3"):
                    job.raises(node, WRONG)
                await job.until(lambda: job.coordinator._board.over)
                assert time.monotonic() - begun < 0.2

        within(work())

    def test_that_is_a_guess_ends_the_run_when_a_new_process_meets_it_again(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                job.raises("n2", GUESS)
                await job.running()
                assert job.rules == [("n2", "new process")]
                job.raises("n2", GUESS)
                await job.until(lambda: job.cause is not None)
                assert job.cause == "error of the program in rank 1 on n2"
                assert job.rules[-1] == ("n2", "the program again")
                assert job.lost == []
                assert "Traceback of n2" in capfd.readouterr().err

        within(work())

    def test_that_is_a_guess_and_does_not_come_again_costs_a_process(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                for _ in range(2):
                    job.raises("n2", GUESS)
                    await recovered(job)
                assert job.rules == [("n2", "new process")] * 2
                assert job.cause is None

        within(work())

    def test_that_came_of_anothers_broken_hardware_ends_nothing(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                now = time.time()
                job.raises("n3", "RuntimeError: loss is not finite (nan)", when=now)
                job.raises("n2", ECC, when=now - 0.05)
                await job.until(lambda: job.lost == ["n2"])
                await recovered(job)
                await job.until(lambda: job.coordinator._board.tasks["tiny"]._faults._concluding is None)
                assert job.cause is None
                assert job.verdicts[-1][1:4] == ([1], ["n2"], "ECC error")

        within(work())


class TestALateReport:
    def test_while_all_are_heard_is_as_good_as_an_early_one(self, tmp_path: Path) -> None:
        """In whatever order victims and culprit are heard, the verdict and the loss are the same."""

        async def work(order: tuple[int, ...], folder: Path) -> Any:
            folder.mkdir()
            async with LoneJob(folder) as job:
                now, epoch = time.time(), job.epoch
                said = [("n1", BROKEN, now), ("n3", BROKEN, now + 0.01), ("n2", ECC, now - 0.01)]
                for index in order:
                    node, error, when = said[index]
                    job.raises(node, error, epoch=epoch, when=when)
                await job.until(lambda: job.lost == ["n2"])
                await recovered(job)
                return job.verdicts[-1][1:4], job.lost, job.stopped

        for number, order in enumerate(itertools.permutations(range(3))):
            verdict, lost, stopped = within(work(order, tmp_path / str(number)))
            assert (verdict, lost) == (([1], ["n2"], "ECC error"), ["n2"])
            assert {rank.seat.node for rank in stopped} <= {"n2"}

    def test_while_all_are_heard_has_its_process_replaced(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                before = job.epoch
                job.deaf.add("n3")  # so that it takes a while until all are heard
                job.raises("n1", BROKEN)
                await job.until(lambda: job.coordinator._board.tasks["tiny"]._transitions.gathering)
                job.raises("n2", ILLEGAL, epoch=before)
                await job.until(lambda: [rank.seat.node for rank in job.stopped] == ["n2"])

        within(work())

    def test_of_broken_hardware_has_the_node_out_though_the_epoch_is_over(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                before = job.epoch
                job.raises("n1", BROKEN)
                await job.running()
                assert job.epoch > before
                job.raises("n2", ECC, epoch=before)
                assert job.lost == ["n2"]
                await recovered(job)
                first, second = job.verdicts
                assert first[:2] == (1, [])
                assert second == (1, [1], ["n2"], "ECC error", True)
                assert len(job.events("incident_closed")) == 1

        within(work())

    def test_after_the_next_commit_opens_its_incident_again(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                before = job.epoch
                job.raises("n1", BROKEN)
                await recovered(job)
                job.raises("n2", ECC, epoch=before)
                assert job.lost == ["n2"]
                await recovered(job)
                assert [event["incident"] for event in job.events("incident_closed")] == [1, 1]
                assert job.verdicts[-1][0] == 1

        within(work())

    def test_of_a_process_fault_only_corrects_the_verdict(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                before = job.epoch
                job.raises("n1", BROKEN)
                await job.running()
                process, epoch = job.on("n2"), job.epoch
                job.raises("n2", ILLEGAL, epoch=before)
                assert (job.on("n2"), job.epoch, job.stopped) == (process, epoch, [])
                assert job.verdicts[-1][1:] == ([1], ["n2"], "illegal memory access", True)
                assert "n2" not in dict(job.rules)  # nothing is done about it, and nothing is said to be

        within(work())

    def test_of_the_program_ends_no_run_that_has_gone_on_and_is_not_said_to(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                before = job.epoch
                job.raises("n1", BROKEN)
                await recovered(job)
                job.raises("n2", WRONG, epoch=before)
                await asyncio.sleep(0)
                assert job.cause is None
                assert job.verdicts[-1][1:3] == ([1], ["n2"])
                assert "fault of the program" not in dict(job.rules).values()

        within(work())

    def test_of_what_is_long_over_changes_nothing(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                before = job.epoch
                job.raises("n1", BROKEN)
                await recovered(job)
                last = job.coordinator._board.tasks["tiny"]._incidents._last
                assert last is not None
                last.closed = time.time() - 60.0
                job.raises("n2", ECC, epoch=before)
                assert job.lost == []

        within(work())

    def test_of_the_kernels_kill_explains_a_death_before_it_is_repeated(self, tmp_path: Path) -> None:
        async def work(by_rank: bool, folder: Path) -> None:
            folder.mkdir()
            async with LoneJob(folder) as job:
                rank = job.dies("n2")
                job.notices("n2", HOST_MEMORY, rank if by_rank else None)
                await job.until(lambda: job.cause is not None)
                assert job.cause == "host out of memory in rank 1 on n2"
                assert job.verdicts[-1][1:4] == ([1], ["n2"], "host out of memory")
                assert job.lost == []

        within(work(True, tmp_path / "rank"))
        within(work(False, tmp_path / "node"))

    def test_about_a_whole_node_belongs_to_the_incident_that_it_explains(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                job.raises("n2", ILLEGAL)
                job.notices("n2", XID)
                await recovered(job)
                assert job.lost == ["n2"]
                assert ("n2", "bad node") in job.rules
                assert {event["incident"] for event in job.events("action_chosen")} == {1}
                assert job.verdicts[-1][2:4] == (["n2"], "Xid 79")

        within(work())

    def test_about_a_whole_node_opens_the_incident_again_that_it_explains(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                when = time.time()
                job.raises("n2", ILLEGAL)
                await recovered(job)
                job.notices("n2", XID, when=when)  # the kernel's log was read later
                await recovered(job)
                assert job.lost == ["n2"]
                assert [event["incident"] for event in job.events("incident_closed")] == [1, 1]

        within(work())

    def test_about_a_whole_node_that_had_no_part_in_the_last_incident_is_a_new_one(
        self, tmp_path: Path
    ) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                when = time.time()
                job.raises("n2", ILLEGAL)
                await recovered(job)
                job.notices("n3", XID, when=when)
                await recovered(job)
                assert [event["incident"] for event in job.events("incident_closed")] == [1, 2]

        within(work())


class TestWhoOnlySawAPeerGo:
    def test_is_never_replaced_nor_named(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                processes = dict(job.ranks)
                for _ in range(3):
                    for node in ("n1", "n3"):
                        job.raises(node, BROKEN)
                    await job.running()
                job.commit()
                assert (job.ranks, job.stopped, job.lost) == (processes, [], [])
                assert all(suspects == nodes == [] for _, suspects, nodes, _, _ in job.verdicts)

        within(work())

    def test_because_of_a_planned_change_is_no_fault(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                before, task = job.epoch, job.coordinator._board.tasks["tiny"]
                job.deaf.add("n3")  # it is waited for while n2's report arrives
                task.plan_again(task.nodes)
                await job.until(lambda: task.in_transition)
                job.raises("n2", "PeerLost: a connection of epoch 1 broke", epoch=before)
                job.deaf.clear()
                rank = job.on("n3")
                epoch = job.coordinator._board.epoch
                job.say(rank, RankHeld(epoch, Holdings(0, Phase.IDLE, 0, (), ())))
                await job.running()
                assert job.epoch == epoch > before
                job.commit()
                assert job.events("fault_detected") == []

        within(work())


def test_a_rank_that_does_not_answer_is_replaced_and_others_are_not(tmp_path: Path) -> None:
    async def work() -> None:
        async with LoneJob(
            tmp_path, "recovery.node_timeout=0.02", "recovery.heartbeat_interval=0.01",
            "recovery.iteration_failure_factor=1.01",
        ) as job:  # fmt: skip
            job.deaf.add("n3")
            job.raises("n1", BROKEN)
            await job.running()
            assert [rank.seat.node for rank in job.stopped] == ["n3"]
            assert ("n3", "new process") in job.rules

    within(work())


def test_a_warning_costs_nothing_but_a_line(tmp_path: Path) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path) as job:
            epoch = job.epoch
            job.notices("n2", Finding("Xid 145", Severity.INFO, Blame.NOBODY), job.on("n2"), epoch)
            (warning,) = job.events("node_warning")
            assert (warning["node"], warning["rank"], warning["error"]) == ("n2", 1, "Xid 145")
            assert job.epoch == epoch
            assert job.events("fault_detected") == []

    within(work())


def test_a_process_that_ended_as_somebody_wanted_is_replaced_without_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path) as job:
            wanted = Finding("cancelled", Severity.INFO, Blame.NOBODY)
            monkeypatch.setattr(faults, "explain_exit", lambda status, **_: wanted)
            old = job.dies("n2")
            await recovered(job)
            assert job.on("n2") != old
            assert job.rules == [("n2", "nothing failed")]

    within(work())


class TestTheCoordinatorsOwnNode:
    def test_that_is_bad_is_dealt_with_before_its_agent_leaves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drained = asyncio.Event()

        async def settled(node: str, seconds: float) -> None:
            assert node == "n1"
            await drained.wait()

        async def work() -> None:
            async with LoneJob(tmp_path) as job:
                board = job.coordinator._board
                monkeypatch.setattr(board._drains, "settled", settled)
                old = job.on("n1")
                job.notices("n1", XID)
                await job.running()
                assert job.lost == ["n1"]
                assert old in job.stopped
                assert board.tasks["tiny"].layout is not None
                assert {seat.node for seat in board.tasks["tiny"].layout.seats} == {"n2", "n3", "n4"}
                job.coordinator.handle("n1", Heartbeat(True, 1))  # its agent lives on for now
                assert job.told_to_leave == set()
                drained.set()
                await job.until(lambda: job.told_to_leave == {"n1"})

        within(work())


def test_a_node_that_is_told_to_leave_is_not_needed_for_the_next_decision(tmp_path: Path) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path, active=2, spares=0, on_slurm=True) as job:
            job.raises("n2", ECC)
            job.coordinator.tick(time.monotonic())
            assert job.coordinator._board.may_decide
            await recovered(job)
            assert job.lost == ["n2"]

    within(work())

"""What the coordinator does about ranks that hang and nodes that are slow; agents and ranks are simulated."""

from __future__ import annotations

import time
from pathlib import Path

from tests.supervisor.events import within
from tests.supervisor.lone_coordinator import LoneJob
from unicron_hpc.detect.hangs import RANK_STOPPED
from unicron_hpc.detect.severity import Method
from unicron_hpc.supervisor.messages import Heartbeat, Noticed, StopRank, TellRank
from unicron_hpc.supervisor.rank_messages import Cut, RankSection
from unicron_hpc.supervisor.watch_messages import DumpStacks, RankStacks, StacksDumped, Vital

NODES = ("n1", "n2", "n3")


def asked(job: LoneJob) -> dict[str, int]:
    """When each node was asked for stacks, in the order of all that was sent."""
    return {node: at for at, (node, body) in enumerate(job.sent) if isinstance(body, DumpStacks)}


def test_the_stacks_of_all_are_asked_for_before_a_hanging_rank_or_any_other_is_touched(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path) as job:
            old, epoch = job.on("n2"), job.epoch
            job.sent.clear()
            noticed = Noticed(RANK_STOPPED, Method.STATISTICS, "stopped", time.time(), old, epoch)
            job.coordinator.handle("n2", noticed)
            await job.running()
            touched = [
                at
                for at, (_, body) in enumerate(job.sent)
                if isinstance(body, StopRank) or (isinstance(body, TellRank) and isinstance(body.order, Cut))
            ]
            assert asked(job).keys() == set(NODES)
            assert max(asked(job).values()) < min(touched)
            assert job.stopped == [old]

            stacks = RankStacks(old, 77, "python: T", "where it was", "stacks-n2-0.txt")
            job.coordinator.handle("n2", StacksDumped("tiny", epoch, (stacks,)))
            (told,) = job.events("stacks_dumped")
            assert (told["epoch"], told["node"], told["task"]) == (epoch, "n2", "tiny")
            assert told["ranks"] == [
                {
                    "slot": 0,
                    "pid": 77,
                    "state": "python: T",
                    "stacks": "where it was",
                    "file": "stacks-n2-0.txt",
                }
            ]

    within(work())


def test_a_late_commit_is_a_lost_message_only_if_nobody_is_at_work(tmp_path: Path) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path, "recovery.iteration_failure_floor=0.01") as job:
            task = job.coordinator._board.tasks["tiny"]

            def vitals(busy: str) -> None:
                for node in NODES:
                    vital = Vital(job.on(node), job.epoch, 1, node == busy)
                    job.coordinator.handle(node, Heartbeat(True, 0, vitals=(vital,)))

            epoch = job.epoch
            vitals(busy="n3")
            job.sent.clear()
            task.tick(time.monotonic() + 1.0)
            assert (asked(job), task.in_transition) == ({}, False)
            vitals(busy="")
            task.tick(time.monotonic() + 1.0)
            assert asked(job).keys() == set(NODES)
            await job.running()
            assert job.epoch > epoch
            assert [event["error"] for event in job.events("fault_detected")] == ["task hang"]
            assert job.stopped == []

    within(work())


def test_a_rank_that_was_replaced_while_it_saved_excuses_no_silence_afterwards(tmp_path: Path) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path, "recovery.iteration_failure_floor=0.01") as job:
            task = job.coordinator._board.tasks["tiny"]
            job.say(job.on("n2"), RankSection(job.epoch, "checkpoint"))
            task.tick(time.monotonic() + 1.0)
            assert not task.in_transition  # a slow disk is no fault
            job.raises("n2", "RuntimeError: CUDA error: an illegal memory access was encountered")
            await job.running()
            job.commit()
            task.tick(time.monotonic() + 1.0)
            await job.running()
            assert [event["error"] for event in job.events("fault_detected")][1:] == ["task hang"]

    within(work())


def test_a_node_that_stays_slow_gives_way_to_a_spare(tmp_path: Path) -> None:
    async def work() -> None:
        async with LoneJob(tmp_path, "recovery.slow_node_window=5") as job:
            board = job.coordinator._board
            begun = time.monotonic()
            for second in range(10):
                for node in NODES:
                    seconds = 0.5 if node == "n2" else 0.1
                    vital = Vital(job.on(node), job.epoch, 1, True, seconds, 16)
                    board.tasks["tiny"].vitals.note(vital, begun + second)
                board.look_for_slow(begun + second)
            await job.until(lambda: job.lost == ["n2"])
            await job.running()
            assert {rank.seat.node for rank in job.ranks.values()} >= {"n1", "n3", "n4"}
            (slow,) = job.events("slow_node")
            assert slow["node"] == "n2"
            (fault,) = [event for event in job.events("fault_detected") if event["node"] == "n2"]
            assert (fault["error"], fault["severity"]) == ("slow node", "SEV1")

    within(work())

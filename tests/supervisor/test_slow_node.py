"""A node that becomes slow, under a real coordinator."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

from tests.supervisor.events import within
from tests.supervisor.lone_coordinator import LoneJob
from unicron_hpc.planner.layout import Layout
from unicron_hpc.runtime.orders import Holdings, Phase
from unicron_hpc.supervisor.messages import TellRank
from unicron_hpc.supervisor.rank_messages import Cut, RankHeld
from unicron_hpc.supervisor.watch_messages import Vital

WINDOW = 10
#: Computing takes far longer than sending, so that every share counts.
BUSY = ("model.hidden_size=1024", "model.seq_length=512", "train.micro_batch_size=1")


def load(layout: Layout | None) -> dict[str, int]:
    """Layers times micro-batches of every node."""
    assert layout is not None
    return {
        layout.seats[p.rank].node: p.stage.num_layers * layout.replicas[p.replica].micro_batches
        for p in layout.positions()
    }


def test_it_gets_less_to_do_by_a_planned_transition_and_its_share_back_when_it_is_fast_again(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        window = f"recovery.slow_node_window={WINDOW}"
        async with LoneJob(tmp_path, window, *BUSY, active=4, spares=0) as job:
            board = job.coordinator._board
            task = board.tasks["tiny"]
            assert load(task.layout) == dict.fromkeys(job.nodes, 16)
            start = time.monotonic()
            for second in range(WINDOW + 2):
                for node in job.nodes:
                    vital = Vital(job.on(node), job.epoch, 9, True, 0.4 if node == "n3" else 0.2, 9)
                    task.vitals.note(vital, start + second)
                board.look_for_slow(start + second)
            while not task.in_transition:  # at every step of the loop: it is over within milliseconds
                await asyncio.sleep(0)
            assert not task.plan_again(task.nodes)  # one at a time
            await job.running()
            now = load(task.layout)
            assert set(now) == set(job.nodes)
            assert 0 < now["n3"] < 16 < max(now.values())
            (told,) = job.events("share_anew")
            assert (told["node"], told["factor"]) == ("n3", 2.0)
            assert told["seconds_then"] < told["seconds_now"]
            assert [event["incident"] for event in job.events("transition_finished")] == [None, None]
            assert job.events("fault_detected") == []

            later = start + 10 * WINDOW
            while len(job.events("share_anew")) < 2:
                later += 1.0
                for node, share in now.items():
                    vital = Vital(job.on(node), job.epoch, 9, True, 0.2 * share / 16, 9)
                    task.vitals.note(vital, later)
                board.look_for_slow(later)
                await asyncio.sleep(0.001)  # the planner answers in a thread
            await job.until(lambda: load(task.layout) != now)
            await job.running()
            assert load(task.layout) == dict.fromkeys(job.nodes, 16)
            (well,) = job.events("slow_node_recovered")
            assert well["node"] == "n3"

    within(work())


def test_plans_that_were_begun_before_do_not_make_it_fast_again(tmp_path: Path) -> None:
    """They are ready in the midst of the transition that gives it less to do."""

    async def work() -> None:
        window = f"recovery.slow_node_window={WINDOW}"
        async with LoneJob(tmp_path, window, *BUSY, active=4, spares=0) as job:
            await job.until(lambda: bool(job.events("plans_ready")))
            board = job.coordinator._board
            task, plan = board.tasks["tiny"], board._planning._plan
            free, prepare = threading.Event(), plan.prepare

            def late(*args: Any) -> Any:
                prepared = prepare(*args)
                assert free.wait(10.0)
                return prepared

            plan.prepare = late  # type: ignore[method-assign]
            board._planning.refresh(job.epoch)
            await asyncio.sleep(0)  # it has begun
            job.deaf = {"n1"}  # the transition waits for it
            start = time.monotonic()
            for second in range(WINDOW + 2):
                for node in job.nodes:
                    vital = Vital(job.on(node), job.epoch, 9, True, 0.4 if node == "n3" else 0.2, 9)
                    task.vitals.note(vital, start + second)
                board.look_for_slow(start + second)
            await job.until(lambda: task.in_transition)
            free.set()
            await job.until(lambda: len(job.events("plans_ready")) > 1)
            assert job.events("plans_ready")[1]["slowdowns"] == {}
            orders = [body.order for _, body in job.sent if isinstance(body, TellRank)]
            cut = next(order for order in reversed(orders) if isinstance(order, Cut))
            job.say(job.on("n1"), RankHeld(cut.epoch, Holdings(0, Phase.IDLE, 0, (), ())))
            await job.running()
            assert load(task.layout)["n3"] < 16

    within(work())

"""The coordinator's eye on slow nodes: what is told, what plans reckon with, and who is taken out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.planner.works import small_work
from tests.supervisor.events import within
from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.severity import Blame, Severity
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.planner.straggler import Verdict
from unicron_hpc.report.journal import EVENTS, Journal, read_lines
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.rank_messages import RankAddress
from unicron_hpc.supervisor.stragglers import LEAST, Running, Stragglers, own_work
from unicron_hpc.supervisor.watch_messages import Vital

NODES = ["n0", "n1", "n2", "n3"]
LAYOUT = Layout(
    num_layers=4,
    tensor=1,
    micro_batch_size=2,
    replicas=(
        Replica((Stage(0, 1, (0,)), Stage(2, 3, (1,))), 0, 2),
        Replica((Stage(0, 1, (2,)), Stage(2, 3, (3,))), 2, 2),
    ),
    seats=tuple(Seat(node, 0) for node in NODES),
)
RECOVERY = RecoverySettings(slow_node_window=30.0)
WINDOW = int(RECOVERY.slow_node_window) + 1


#: Nobody does the same as another.
UNLIKE = msgspec.structs.replace(
    LAYOUT,
    replicas=tuple(msgspec.structs.replace(LAYOUT.replicas[k], micro_batches=(3, 1)[k]) for k in range(2)),
)


def running(slow: Mapping[str, float], samples: int = LEAST, layout: Layout = LAYOUT) -> dict[str, Running]:
    """A task whose nodes take 0.1 s for two micro-batches, times these factors."""
    vitals = {}
    for number, node in enumerate(NODES):
        address = RankAddress("train", Seat(node, 0), 1)
        seconds = 0.05 * layout.replicas[number // 2].micro_batches * slow.get(node, 1.0)
        vitals[number] = Vital(address, 1, 9, True, seconds, samples)
    return {"train": Running(layout, small_work(), vitals)}


class Eye:
    """Stragglers, and what they have others do."""

    def __init__(self, folder: Path, verdict: Verdict | None = None) -> None:
        self.planned: list[Mapping[str, float]] = []
        self.asked: list[tuple[str, str]] = []
        self.out: list[Evidence] = []
        self.shared: list[str] = []
        self.busy = False
        self._folder = folder
        self._verdict = verdict
        self.threads: list[threading.Thread] = []
        self._now = 0.0
        self._journal = Journal(folder)
        self.stragglers = Stragglers(
            RECOVERY, self._journal, self.planned.append, self._ask, self.out.append, self._share
        )

    def _share(self, task: str) -> bool:
        self.shared.append(task)
        return not self.busy

    def _ask(self, task: str, node: str) -> Callable[[], Verdict | None]:
        self.asked.append((task, node))

        def answer() -> Verdict | None:
            self.threads.append(threading.current_thread())
            return self._verdict

        return answer

    async def see(self, seconds: int, slow: Mapping[str, float], layout: Layout = LAYOUT) -> None:
        for _ in range(seconds):
            self._now += 1.0
            self.stragglers.look(running(slow, layout=layout), 1, self._now)
            if self.stragglers._asking is not None:
                await self.stragglers._asking

    def told(self) -> list[dict[str, Any]]:
        self._journal.close()
        return list(read_lines(self._folder / EVENTS))


def test_a_node_that_is_slow_for_a_window_is_told_once_and_planned_for(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path)
        await eye.see(WINDOW // 2, {"n2": 1.3})
        assert eye.planned == []
        await eye.see(3 * WINDOW, {"n2": 1.3})
        assert len(eye.planned) == 1
        assert abs(eye.planned[0]["n2"] - 1.3) < 1e-9
        (told,) = eye.told()
        assert (told["node"], told["task"], told["slot"]) == ("n2", "train", 0)
        assert abs(told["factor"] - 1.3) < 1e-9
        assert "0.1000 s in the median of 1 like it" in told["evidence"]

    within(work())


def test_one_that_is_fast_again_is_told_and_planned_as_such(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path)
        await eye.see(WINDOW, {"n2": 1.3})
        await eye.see(WINDOW, {})
        assert eye.planned[-1] == {}
        assert [event["type"] for event in eye.told()] == ["slow_node", "slow_node_recovered"]

    within(work())


def test_plans_learn_of_a_factor_that_grows(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path)
        await eye.see(2 * WINDOW, {"n2": 1.2})
        await eye.see(2 * WINDOW, {"n2": 1.4})
        assert len(eye.told()) == 1
        assert abs(eye.planned[-1]["n2"] - 1.4) < 1e-9

    within(work())


def test_a_node_without_which_the_task_is_faster_is_out(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path, Verdict(with_seconds=0.3, without_seconds=0.2, better=True))
        await eye.see(WINDOW, {"n1": 2.0})
        assert eye.asked == [("train", "n1")]
        assert (
            eye.threads[0] is not threading.current_thread()
        )  # the planner must not hold up the coordinator
        (evidence,) = eye.out
        assert (evidence.node, evidence.finding.error) == ("n1", "slow node")
        assert (evidence.finding.severity, evidence.finding.blame) == (Severity.SEV1, Blame.NODE)
        assert "0.3000 s with it and 0.2000 s without it" in evidence.detail

    within(work())


def test_a_node_that_is_still_worth_having_stays_and_the_planner_is_asked_once_a_window(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        eye = Eye(tmp_path, Verdict(with_seconds=0.2, without_seconds=0.3, better=False))
        await eye.see(WINDOW + 10, {"n1": 2.0})
        assert len(eye.asked) == 1
        await eye.see(WINDOW, {"n1": 2.0})
        assert len(eye.asked) == 2
        unknown = Eye(tmp_path / "none")
        await unknown.see(WINDOW, {"n1": 2.0})
        assert len(unknown.asked) == 1
        assert eye.out == unknown.out == []

    (tmp_path / "none").mkdir()
    within(work())


def test_one_that_is_not_slow_enough_to_go_stays_although_a_spare_would_be_faster(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path, Verdict(with_seconds=0.3, without_seconds=0.2, better=True))
        await eye.see(3 * WINDOW, {"n1": 1.4})
        assert eye.asked != []
        assert (eye.out, eye.shared) == ([], [])

    within(work())


SHARE = Verdict(with_seconds=0.2, without_seconds=0.4, better=False, now_seconds=0.3, share_anew=True)


def test_the_work_is_shared_anew_at_most_once_a_window_where_that_pays(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path, SHARE)
        await eye.see(WINDOW + 10, {"n1": 1.3})
        assert eye.shared == ["train"]
        await eye.see(WINDOW, {"n1": 1.3})
        assert eye.shared == ["train", "train"]
        assert eye.out == []
        told = [event for event in eye.told() if event["type"] == "share_anew"]
        assert len(told) == 2
        assert (told[0]["node"], told[0]["seconds_now"], told[0]["seconds_then"]) == ("n1", 0.3, 0.2)
        assert abs(told[0]["factor"] - 1.3) < 1e-9

    within(work())


def test_it_is_shared_anew_when_the_node_is_as_fast_as_the_others_again(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path, SHARE)
        await eye.see(WINDOW, {"n1": 1.3})
        await eye.see(WINDOW, {})
        assert eye.shared == ["train", "train"]
        assert [event["type"] for event in eye.told()] == [
            "slow_node",
            "share_anew",
            "slow_node_recovered",
            "share_anew",
        ]

    within(work())


def test_one_that_is_left_without_its_like_stays_slow_until_it_recovers(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path)
        await eye.see(WINDOW, {"n1": 1.4})
        await eye.see(2 * WINDOW, {"n1": 1.4}, UNLIKE)
        assert [event["type"] for event in eye.told()] == ["slow_node"]
        eye = Eye(tmp_path / "again")
        await eye.see(WINDOW, {"n1": 1.4})
        await eye.see(WINDOW, {"n1": 1.4}, UNLIKE)
        await eye.see(WINDOW, {}, UNLIKE)
        assert [(event["type"], event["node"]) for event in eye.told()] == [
            ("slow_node", "n1"),
            ("slow_node_recovered", "n1"),
        ]

    (tmp_path / "again").mkdir()
    within(work())


def test_one_that_may_be_well_is_given_its_share_back_and_its_like_tells(tmp_path: Path) -> None:
    """By the model it takes 1.16 times its time, which is as good as the model is."""

    async def work() -> None:
        eye = Eye(tmp_path, SHARE)
        await eye.see(WINDOW, {"n1": 3.0})
        await eye.see(WINDOW, {"n1": 1.22}, UNLIKE)
        assert eye.planned[-1] == {}
        await eye.see(WINDOW, {"n1": 1.22}, UNLIKE)  # what was no more than a guess does not make it slow
        await eye.see(WINDOW, {"n1": 1.02})
        kinds = [event["type"] for event in eye.told()]
        assert kinds == ["slow_node", "share_anew", "slow_node_recovered", "share_anew"]
        still = Eye(tmp_path / "still", SHARE)
        await still.see(WINDOW, {"n1": 3.0})
        await still.see(WINDOW, {"n1": 1.22}, UNLIKE)
        await still.see(WINDOW, {"n1": 1.22})
        kinds = [event["type"] for event in still.told()]
        assert kinds[-3:] == ["share_anew", "slow_node", "share_anew"]
        assert abs(still.planned[-1]["n1"] - 1.22) < 1e-9

    (tmp_path / "still").mkdir()
    within(work())


def test_a_task_that_cannot_move_now_is_not_said_to_have_moved(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path, SHARE)
        eye.busy = True
        await eye.see(WINDOW, {"n1": 1.3})
        assert eye.shared == ["train"]
        assert [event["type"] for event in eye.told()] == ["slow_node"]

    within(work())


def test_noise_and_common_slowness_name_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path)
        await eye.see(WINDOW, {"n0": 1.05, "n3": 1.08})
        await eye.see(WINDOW, dict.fromkeys(NODES, 5.0))
        assert eye.planned == []
        assert eye.told() == []

    within(work())


def test_looks_in_quick_succession_are_one(tmp_path: Path) -> None:
    class Counted(dict[str, Running]):
        looks = 0

        def items(self) -> Any:
            self.looks += 1
            return super().items()

    tasks = Counted(running({}))
    eye = Eye(tmp_path)
    for hundredth in range(250):
        eye.stragglers.look(tasks, 1, 5.0 + hundredth / 100)
    assert tasks.looks == 3


def test_ranks_are_compared_when_all_of_them_have_been_measured() -> None:
    (task,) = running({}).values()
    works = own_work(task)
    assert works is not None
    assert [(w.node, w.seconds) for w in works] == [(node, 0.1) for node in NODES]
    assert works[0].kind == works[2].kind
    assert works[1].kind == works[3].kind
    assert works[0].kind != works[1].kind
    assert works[1].expected > works[0].expected  # the loss head comes on top
    pipeline = Replica((Stage(0, 0, (0,)), Stage(1, 1, (1,)), Stage(2, 2, (2,)), Stage(3, 3, (3,))), 0, 4)
    deep = own_work(Running(msgspec.structs.replace(LAYOUT, replicas=(pipeline,)), task.work, task.vitals))
    assert deep is not None
    assert deep[0].kind != deep[1].kind  # the embedding
    assert deep[1].kind == deep[2].kind != deep[3].kind
    (early,) = running({}, LEAST - 1).values()
    assert own_work(early) is None
    missing = {rank: vital for rank, vital in task.vitals.items() if rank != 2}
    assert own_work(Running(task.layout, task.work, missing)) is None


def test_a_task_that_cannot_move_when_its_node_recovers_moves_as_soon_as_it_can(tmp_path: Path) -> None:
    async def work() -> None:
        eye = Eye(tmp_path, SHARE)
        await eye.see(WINDOW, {"n1": 1.3})
        eye.busy = True
        await eye.see(WINDOW, {})
        eye.busy = False
        await eye.see(2, {})
        told = [event["type"] for event in eye.told()]
        assert told == ["slow_node", "share_anew", "slow_node_recovered", "share_anew"]
        done = len(eye.shared)
        await eye.see(2 * WINDOW, {})
        assert len(eye.shared) == done

    within(work())

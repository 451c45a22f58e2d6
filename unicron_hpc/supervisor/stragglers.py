"""The coordinator's eye on slow nodes: told, planned for, and taken out where that pays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.severity import Blame, Finding, Method, Severity
from unicron_hpc.detect.stragglers import Comparison, OwnWork, Persistence, Slowness
from unicron_hpc.planner.cost import stage_costs
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.straggler import Verdict
from unicron_hpc.planner.work import TaskWork
from unicron_hpc.report.journal import Journal
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.watch_messages import Vital

log = logging.getLogger(__name__)

SLOW_NODE = Finding("slow node", Severity.SEV1, Blame.NODE)
#: Seconds between two comparisons.
INTERVAL = 1.0
#: Iterations that must be behind a rank's seconds.
LEAST = 8
#: A factor that differs from the planned one by more than this is planned for anew.
STEP = 0.05


@dataclass(frozen=True, slots=True)
class Running:
    """A task that runs: its layout and description, and the vitals of the layout's ranks, by rank."""

    layout: Layout
    work: TaskWork
    vitals: Mapping[int, Vital]


class Stragglers:
    """Compares the nodes of every task.

    Parameters
    ----------
    recovery
        Thresholds and window.
    journal
        Where slow nodes are told.
    planned_with
        Takes the factors of all slow nodes whenever they change.
    better_without
        Prepares the question whether a task is better off without a node; it is asked in a thread.
    take_out
        Takes a node out of the job.
    share_anew
        Has a task move to the best layout on its nodes; False where it cannot now.
    """

    def __init__(
        self,
        recovery: RecoverySettings,
        journal: Journal,
        planned_with: Callable[[Mapping[str, float]], None],
        better_without: Callable[[str, str], Callable[[], Verdict | None]],
        take_out: Callable[[Evidence], None],
        share_anew: Callable[[str], bool],
    ) -> None:
        self._recovery = recovery
        self._journal = journal
        self._planned_with = planned_with
        self._better_without = better_without
        self._take_out = take_out
        self._share_anew = share_anew
        self._comparisons: dict[str, Comparison] = {}
        self._nodes: dict[str, Persistence] = {}
        self._factors: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._asking: asyncio.Task[None] | None = None
        #: Nodes that are as fast as the others again, whose task has not been asked to share anew since.
        self._recovered: dict[str, tuple[str, Slowness]] = {}
        self._next = 0.0

    def look(self, tasks: Mapping[str, Running], epoch: int, now: float) -> None:
        """Compare the ranks of the tasks that run; call often."""
        if now < self._next:
            return
        self._next = now + INTERVAL
        changed = False
        for name, task in tasks.items():
            ranks = own_work(task)
            if ranks is None:
                continue
            found = self._comparisons.setdefault(name, Comparison()).look(ranks, self._factors)
            for node, slowness in found.items():
                changed |= self._note(name, node, slowness, epoch, now)
        if changed:
            self._planned_with(dict(self._factors))
        for node, (task_name, slowness) in list(self._recovered.items()):
            if self._ask(task_name, node, 1.0, slowness, epoch, now):
                break

    def close(self) -> None:
        """Ask no more."""
        if self._asking:
            self._asking.cancel()

    def _note(self, task: str, node: str, slowness: Slowness, epoch: int, now: float) -> bool:
        """Add a comparison of a node; returns whether plans must know."""
        seen = self._nodes.setdefault(node, Persistence(self._recovery.slow_node_window))
        known = self._factors.get(node, 1.0)
        seen.note(now, slowness.given(known))
        threshold = self._recovery.slow_node_factor
        if seen.slow and seen.over(threshold, exact=slowness.exact):
            # A new one: if that it was slower was no more than a guess, that must not make it slow again.
            self._nodes[node] = Persistence(self._recovery.slow_node_window)
            self._factors.pop(node, None)
            self._journal.write("slow_node_recovered", epoch, task=task, node=node)
            self._comparisons[task].forget(node)
            self._recovered[node] = (task, slowness)
            return True
        factor = seen.lasting(threshold)
        if factor is None:
            return False
        was_slow = seen.slow
        seen.found_slow(factor)
        if not was_slow:
            self._recovered.pop(node, None)
            log.warning("%s is slow: %.2f times (%s)", node, factor, slowness.compared)
            self._journal.write(
                "slow_node",
                epoch,
                task=task,
                node=node,
                slot=slowness.slot,
                factor=factor,
                evidence=slowness.compared,
            )
        self._ask(task, node, factor, slowness, epoch, now)
        self._factors[node] = factor
        return abs(factor - known) > STEP

    def _ask(self, task: str, node: str, factor: float, slowness: Slowness, epoch: int, now: float) -> bool:
        """Have the planner say what would be better with a node that is as slow as this.

        Once a window, but for one that has recovered; False where it was not asked.
        """
        if self._asking is not None and not self._asking.done():
            return False
        recent = now - self._asked.get(node, -float("inf")) < self._recovery.slow_node_window
        if recent and node not in self._recovered:
            return False
        self._asked[node] = now
        may_go = self._nodes[node].lasting(self._recovery.slow_node_out_factor) is not None
        work = self._decide(task, node, factor, slowness, epoch, may_go=may_go)
        self._asking = asyncio.create_task(work, name="slow node")
        return True

    async def _decide(
        self, task: str, node: str, factor: float, slowness: Slowness, epoch: int, *, may_go: bool
    ) -> None:
        verdict = await asyncio.to_thread(self._better_without(task, node))
        if verdict is not None and verdict.better and may_go:
            self._out(node, factor, slowness, verdict)
            return
        if verdict is not None and verdict.share_anew:
            if not self._share_anew(task):
                log.info(
                    "task %s cannot share its work anew now, while %s takes %.2f times", task, node, factor
                )
                return  # one that has recovered is asked about again
            self._journal.write(
                "share_anew",
                epoch,
                task=task,
                node=node,
                factor=factor,
                seconds_now=verdict.now_seconds,
                seconds_then=verdict.with_seconds,
            )
        else:
            log.info("%s takes %.2f times as long, and the task stays as it is: %s", node, factor, verdict)
        self._recovered.pop(node, None)

    def _out(self, node: str, factor: float, slowness: Slowness, verdict: Verdict) -> None:
        detail = (
            f"{factor:.2f} times as slow as its like for {self._recovery.slow_node_window:.0f} s "
            f"({slowness.compared}, slot {slowness.slot}); an iteration is expected to take "
            f"{verdict.with_seconds:.4f} s with it and {verdict.without_seconds:.4f} s without it"
        )
        self._factors.pop(node, None)
        self._nodes.pop(node, None)
        self._recovered.pop(node, None)
        self._take_out(Evidence(SLOW_NODE, Method.STATISTICS, node, None, detail))


def own_work(task: Running) -> Sequence[OwnWork] | None:
    """What every rank of a task has to do and how long it takes; None unless all have been measured."""
    layout = task.layout
    used = [seat.node for seat in layout.seats]
    slots = max(used.count(node) for node in set(used))
    costs = stage_costs(task.work, layout.tensor, layout.micro_batch_size, slots)
    found = []
    for position in layout.positions():
        vital = task.vitals.get(position.rank)
        if vital is None or vital.samples < LEAST or vital.compute <= 0:
            return None
        share = layout.replicas[position.replica].micro_batches
        layers = position.stage.num_layers
        seconds = costs.stage + layers * costs.layer
        seconds += costs.first if position.is_first else 0.0
        seconds += costs.last if position.is_last else 0.0
        seat = layout.seats[position.rank]
        kind = (layers, position.is_first, position.is_last, position.tensor_index, share)
        found.append(OwnWork(seat.node, seat.slot, kind, share * seconds, vital.compute))
    return found

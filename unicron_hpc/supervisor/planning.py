"""The coordinator's use of the planner: who gets which nodes, and plans made ahead in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.straggler import Verdict, better_without
from unicron_hpc.planner.work import NodeSlots, TaskWork
from unicron_hpc.report.journal import Journal
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.job_plan import Change, JobPlan
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import Role, TaskSnapshot
from unicron_hpc.supervisor.task_control import TaskControl

log = logging.getLogger(__name__)


class Planning:
    """Assigns nodes to tasks, now and after every event.

    Parameters
    ----------
    tasks, works
        Every task by name: its control, and how the planner sees it.
    active
        Most nodes that tasks use together.
    members, journal
        The coordinator's.
    domains
        Asks which nodes fail together (blocks; used in a thread).
    """

    def __init__(
        self,
        tasks: Mapping[str, TaskControl],
        works: Mapping[str, TaskWork],
        active: int,
        members: Members,
        journal: Journal,
        domains: Callable[[], Sequence[Collection[str]]],
    ) -> None:
        self._tasks = tasks
        self._plan = JobPlan(works, active)
        self._members = members
        self._journal = journal
        self._ask_domains = domains
        self._domains: Sequence[Collection[str]] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._stale = False
        self._slowdowns: dict[str, float] = {}
        self._misses = 0
        self._epoch = 0

    def begin(self) -> None:
        """The first assignment.

        Raises
        ------
        PlanError
            When the tasks' minimum sizes exceed what there is.
        """
        nodes = self._plan.begin(self._alive())
        for name, task in self._tasks.items():
            task.assign(nodes[name])

    def adopt(self, tasks: Sequence[TaskSnapshot]) -> None:
        """Go on with a predecessor's assignment; tasks are not disturbed by this."""
        self._plan.adopt({task.name: task.nodes for task in tasks}, self._alive())
        for name, task in self._tasks.items():
            task.keep(self._plan.nodes[name])

    def after_loss(self, lost: Mapping[str, Evidence], epoch: int) -> None:
        """Nodes are gone: every task that is hit, or that gives or gets nodes, moves.

        Raises
        ------
        PlanError
            When no task can go on.
        """
        hit: dict[str, Evidence] = {}
        for node, evidence in lost.items():
            for name, task in self._tasks.items():
                if task.on_node_lost(node):
                    hit.setdefault(name, evidence)
        change = self._plan.after_loss(lost, self._alive(), self._layouts())
        self._apply(change, hit, f"loss of {','.join(sorted(lost))}", epoch)

    def after_finish(self, task: str, epoch: int) -> None:
        """A task has finished: its nodes go to those that can use them."""
        change = self._plan.after_finish(task, self._alive(), self._layouts())
        self._apply(change, {}, f"end of {task}", epoch)

    def refresh(self, epoch: int) -> None:
        """Make the plans for the next events anew, in the background."""
        self._epoch = epoch
        if self._refreshing and not self._refreshing.done():
            self._stale = True
        else:
            self._refreshing = asyncio.create_task(self._refresh(), name="plans")

    def reckon_with(self, slowdowns: Mapping[str, float]) -> None:
        """Nodes are slower (or not any more) than their like: plans from now on take that into account."""
        self._slowdowns = dict(slowdowns)
        self.refresh(self._epoch)

    def better_without(self, task: str, node: str) -> Callable[[], Verdict | None]:
        """Prepare the question whether a task is better off without a node; made to be asked in a thread.

        The answer is None where the task has no such node, or no layout any more.
        """
        control = self._tasks[task]
        alive = {slots.name: slots for slots in self._alive()}
        nodes = [alive[held.name] for held in control.nodes if held.name in alive]
        taken = {held.name for other in self._tasks.values() for held in other.nodes}
        spares = [slots for name, slots in alive.items() if name not in taken]
        work, layout = control.work, control.layout

        def ask() -> Verdict | None:
            with contextlib.suppress(PlanError):
                return better_without(work, nodes, node, spares=spares, previous=layout)
            return None

        return ask

    def share_anew(self, task: str) -> bool:
        """Have a task move to the best layout on its nodes, as slow as they are; False if it cannot now."""
        alive = {slots.name for slots in self._alive()}
        control = self._tasks[task]
        if any(held.name not in alive for held in control.nodes):
            return False
        return control.plan_again(self._as_slow_as_now(control.nodes))

    def close(self) -> None:
        """Make no more plans."""
        if self._refreshing:
            self._refreshing.cancel()

    def _apply(self, change: Change, hit: Mapping[str, Evidence], event: str, epoch: int) -> None:
        if not change.from_table:
            self._misses += 1
            self._journal.write("table_miss", epoch, event=event, misses=self._misses, seconds=change.seconds)
        # Who gives comes before who gets, so that a node's old ranks end as soon as they can.
        order = sorted(self._tasks, key=lambda name: len(change.nodes[name]) >= len(self._tasks[name].nodes))
        for name in order:
            self._tasks[name].assign(
                change.nodes[name],
                candidate=change.candidates.get(name),
                from_table=change.from_table,
                evidence=hit.get(name),
            )

    async def _refresh(self) -> None:
        while True:
            self._stale = False
            try:
                if self._domains is None:
                    self._domains = await asyncio.to_thread(self._ask_domains)
                slowdowns = self._slowdowns
                prepared = await asyncio.to_thread(
                    self._plan.prepare,
                    self._alive(),
                    self._layouts(),
                    {name: task.measured for name, task in self._tasks.items() if not task.finished},
                    self._domains,
                )
            except Exception:  # plans made ahead are a convenience: without them they are made when needed
                log.exception("no plans could be made ahead")
                return
            if self._plan.install(prepared):
                for name, work in prepared.works.items():
                    self._tasks[name].use(work)
                    # They may have become slow, or fast again, while this was worked out.
                    self._tasks[name].keep(self._as_slow_as_now(self._plan.nodes[name]))
                self._journal.write(
                    "plans_ready",
                    self._epoch,
                    plans=len(prepared.table),
                    slowdowns=slowdowns,
                    seconds=prepared.seconds,
                    prediction_error={
                        name: {"before": before, "after": after}
                        for name, (before, after) in prepared.errors.items()
                    },
                )
            if not self._stale:
                return

    def _alive(self) -> list[NodeSlots]:
        """Live nodes: those meant to train first, as Slurm orders them, then the spares, warm ones first."""
        here = self._members.alive()
        active = [node for node in here if node.role is Role.ACTIVE]
        spares = [node for node in here if node.role is not Role.ACTIVE]
        nodes = [*active, *sorted(spares, key=lambda node: not node.warm)]
        return [NodeSlots(node.name, node.slots, self._slowdowns.get(node.name, 1.0)) for node in nodes]

    def _as_slow_as_now(self, nodes: Sequence[NodeSlots]) -> tuple[NodeSlots, ...]:
        return tuple(
            msgspec.structs.replace(held, slowdown=self._slowdowns.get(held.name, 1.0)) for held in nodes
        )

    def _layouts(self) -> dict[str, Layout]:
        return {
            name: task.layout
            for name, task in self._tasks.items()
            if task.layout is not None and not task.finished
        }

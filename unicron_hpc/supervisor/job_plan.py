"""Which nodes each task has, and what becomes of them when something happens. Pure, but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from unicron_hpc.planner.calibrate import Measured, calibrate
from unicron_hpc.planner.candidate import Candidate
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.situation import Situation
from unicron_hpc.planner.standings import standings
from unicron_hpc.planner.start import least_nodes, share_at_start
from unicron_hpc.planner.table import Event, Planner, Table
from unicron_hpc.planner.work import NodeSlots, TaskWork

Nodes = tuple[NodeSlots, ...]


class Change(msgspec.Struct, frozen=True):
    """What an event makes of the tasks.

    Attributes
    ----------
    nodes
        The nodes of every task afterwards.
    candidates
        How a task runs on them, where that was worked out; None where it goes on as it is or is yet to be
        searched.
    from_table
        Whether the plan was there already.
    seconds
        What it took to have it.
    """

    nodes: dict[str, Nodes]
    candidates: dict[str, Candidate | None]
    from_table: bool
    seconds: float


class Prepared(msgspec.Struct, frozen=True):
    """The lookup table of a situation, and what making it took.

    Attributes
    ----------
    table
        Plans for every event that can come next.
    works
        The tasks with their hardware descriptions corrected by measured iterations.
    errors
        Per task: the median relative error of predictions before and after the correction.
    seconds
        Duration.
    """

    table: Table
    works: dict[str, TaskWork]
    errors: dict[str, tuple[float, float]]
    seconds: float


class JobPlan:
    """The nodes of every task.

    A task that loses a node gets a spare as long as there is one. After that all nodes are shared out anew by
    Unicron's reward, where there are several tasks; a single task takes all that is left.

    Parameters
    ----------
    works
        Every task by name, as the planner sees it.
    active
        Most nodes that tasks use together; the others are spares.
    """

    def __init__(self, works: Mapping[str, TaskWork], active: int) -> None:
        self.works = dict(works)
        self.nodes: dict[str, Nodes] = dict.fromkeys(works, ())
        self._finished: set[str] = set()
        self._active = active
        self._table: Table | None = None

    def begin(self, alive: Sequence[NodeSlots]) -> dict[str, Nodes]:
        """Share `active` nodes out, the first and fastest ones (`planner.start`).

        Raises
        ------
        PlanError
            When minimum sizes exceed what there is.
        """
        here = _in_steps(alive)
        works = self.works
        if sum(least_nodes(work, here) for work in works.values()) > min(self._active, len(here)):
            # Asked for all its nodes the job was not refused, so some never came: shallower then.
            works = {name: replace(work, pipeline=None) for name, work in works.items()}
        self.nodes = share_at_start(works, here, self._active)
        self._free_depths()
        return self.nodes

    def adopt(self, nodes: Mapping[str, Collection[str]], alive: Sequence[NodeSlots]) -> None:
        """Take over a predecessor's decision."""
        here = {node.name: node for node in _in_steps(alive)}
        self.nodes = {name: tuple(here[n] for n in nodes.get(name, ()) if n in here) for name in self.works}
        if any(self.nodes.values()):
            self._free_depths()

    def after_loss(
        self, lost: Collection[str], alive: Sequence[NodeSlots], layouts: Mapping[str, Layout]
    ) -> Change:
        """What becomes of the tasks once `lost` are gone.

        Parameters
        ----------
        lost
            Names of nodes that have just been lost.
        alive
            All nodes that are left, the best spares first among those without a task; slow ones come last.
        layouts
            What runs; a task that is absent waits.

        Raises
        ------
        PlanError
            When no task can go on.
        """
        begun = time.monotonic()
        gone = {node.name: node for held in self.nodes.values() for node in held if node.name in lost}
        here = {node.name: node for node in _in_steps(alive)}
        left = {
            name: tuple(here.get(n.name, n) for n in held if n.name not in gone)
            for name, held in self.nodes.items()
        }
        taken = {node.name for held in left.values() for node in held}
        spares = sorted((n for n in here.values() if n.name not in taken), key=lambda node: node.slowdown)
        if len(gone) <= len(spares):
            for name, held in left.items():
                count = len(self.nodes[name]) - len(held)
                left[name] = (*held, *spares[:count])
                spares = spares[count:]
            self.nodes = left
            return Change(left, dict.fromkeys(left), True, time.monotonic() - begun)
        change = self._replan(
            lambda planner: planner.loss(gone), tuple(gone), (*here.values(), *gone.values()), layouts, begun
        )
        if len(self.works) == 1:
            # Nobody else could use a node that the reward would leave idle.
            (name,) = self.works
            everything = (*left[name], *spares)[: self._active]
            if {n.name for n in everything} != {n.name for n in change.nodes[name]}:
                self.nodes = {name: everything}
                change = replace(change, nodes=self.nodes, candidates={name: None})
        return change

    def after_finish(self, task: str, alive: Sequence[NodeSlots], layouts: Mapping[str, Layout]) -> Change:
        """A task has finished: its nodes go to the others."""
        begun = time.monotonic()
        waiting = {name for name, held in self.nodes.items() if not held} - self._finished
        event = Event(finished=(task,), launched=tuple(sorted(waiting)))
        change = self._replan(lambda _: event, (), _in_steps(alive), layouts, begun)
        self._finished.add(task)
        return change

    def prepare(
        self,
        alive: Sequence[NodeSlots],
        layouts: Mapping[str, Layout],
        measured: Mapping[str, Sequence[Measured]],
        domains: Sequence[Collection[str]],
    ) -> Prepared:
        """Make the plans for all that can come next. Changes nothing here: made for a thread.

        Parameters
        ----------
        measured
            Iterations of each task on the layouts that have run so far.
        domains
            Nodes that fail together.
        """
        begun = time.monotonic()
        works, errors = dict(self.works), {}
        for name, some in measured.items():
            if some:
                found = calibrate(self.works[name], some)
                works[name] = replace(self.works[name], hardware=found.hardware)
                errors[name] = (found.before, found.after)
        table = Table(self._situation(_in_steps(alive), layouts, works), domains)
        return Prepared(table, works, errors, time.monotonic() - begun)

    def install(self, prepared: Prepared) -> bool:
        """Use a prepared table, unless nodes have changed hands while it was made."""
        held = {task.work.name: set(task.nodes) for task in prepared.table.planner.situation.tasks}
        if any({n.name for n in self.nodes[name]} != nodes for name, nodes in held.items()):
            return False
        self._table = prepared.table
        # As fast as they were when the plans were made.
        nodes = prepared.table.planner.situation.nodes
        self.nodes = {name: tuple(nodes.get(n.name, n) for n in some) for name, some in self.nodes.items()}
        return True

    def _free_depths(self) -> None:
        """Tasks have started: one that waits and begins again may do so on fewer nodes than at first."""
        self.works = {name: replace(work, pipeline=None) for name, work in self.works.items()}

    def _replan(
        self,
        event_of: Callable[[Planner], Event],
        lost: Sequence[str],
        before: Sequence[NodeSlots],
        layouts: Mapping[str, Layout],
        begun: float,
    ) -> Change:
        """The plan for an event, from the table if it was made for just this situation."""
        table, self._table = self._table, None
        from_table = False
        if table is not None and table.planner.situation.nodes == {node.name: node for node in before}:
            planner = table.planner
            event = event_of(planner)
            misses = table.misses
            plan = table.fetch(event)
            from_table = table.misses == misses
        else:
            planner = Planner(self._situation(before, layouts))
            event = event_of(planner)
            plan = planner.plan(event)
        counts = {name: task.nodes for name, task in plan.tasks.items()}
        dealt = planner.deal(event, counts, lost)
        self.nodes = {name: dealt.get(name, ()) for name in self.works}
        candidates = {name: task.candidate for name, task in plan.tasks.items()}
        return Change(self.nodes, candidates, from_table, time.monotonic() - begun)

    def _situation(
        self,
        alive: Sequence[NodeSlots],
        layouts: Mapping[str, Layout],
        works: Mapping[str, TaskWork] | None = None,
    ) -> Situation:
        going = {n: work for n, work in (works or self.works).items() if n not in self._finished}
        held = {name: self.nodes[name] for name in going}
        tasks = standings(going, alive, held, layouts)
        return Situation(tasks=tasks, nodes={node.name: node for node in alive}, active=self._active)


def _in_steps(nodes: Sequence[NodeSlots]) -> list[NodeSlots]:
    """The nodes with their slowdown in tenths: what is measured anew all the time is not a new situation."""
    return [replace(node, slowdown=max(round(node.slowdown, 1), 1.0)) for node in nodes]

"""The lookup table: a plan for every event that can come next, made ahead and fetched at once.

Events are told apart by equivalence class, not node by node: two nodes of one task that are equally large
and equally fast are the same loss.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.candidate import Candidate
from unicron_hpc.planner.deal import deal
from unicron_hpc.planner.search import candidates
from unicron_hpc.planner.situation import Rewards, Situation, Standing
from unicron_hpc.planner.work import NodeSlots

#: How many nodes of each (slots, slowdown) a task has: all that its layout depends on.
Shape = tuple[tuple[tuple[int, float], int], ...]


class NodeClass(msgspec.Struct, frozen=True, order=True):
    """Nodes whose loss means the same: of one task (empty for idle ones), size and speed."""

    task: str
    slots: int
    slowdown: float


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What may come next. Classes and names are sorted, so that equal events are equal keys.

    Attributes
    ----------
    lost
        A class for each node lost.
    joined
        Slots and slowdown of each node that joins.
    finished, launched
        Names of tasks.
    """

    lost: tuple[NodeClass, ...] = ()
    joined: tuple[tuple[int, float], ...] = ()
    finished: tuple[str, ...] = ()
    launched: tuple[str, ...] = ()


class TaskPlan(msgspec.Struct, frozen=True):
    """What becomes of one task.

    Attributes
    ----------
    nodes
        How many it gets.
    candidate
        How it runs on them; None where it goes on as it is, or waits.
    """

    nodes: int
    candidate: Candidate | None


class Plan(msgspec.Struct, frozen=True):
    """What becomes of every task after an event, by name."""

    tasks: dict[str, TaskPlan]


class Planner:
    """Plans events in one situation, working out the layout of each (task, nodes) once."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self._owner = {name: task.work.name for task in situation.tasks for name in task.nodes}
        self._examples: dict[NodeClass, list[str]] = {}
        for name in situation.nodes:
            self._examples.setdefault(self.class_of(name), []).append(name)
        self._rewards: dict[tuple[tuple[str, ...], int], Rewards] = {}
        self._found: dict[tuple[str, Shape], Candidate] = {}

    @property
    def node_classes(self) -> Mapping[NodeClass, Sequence[str]]:
        """Every class with its nodes."""
        return self._examples

    def class_of(self, name: str) -> NodeClass:
        """The class of a node.

        Raises
        ------
        PlanError
            When the job has no such node.
        """
        node = self.situation.nodes.get(name)
        if node is None:
            raise PlanError(
                f"no node '{name}' in this job", hint=f"{len(self.situation.nodes)} nodes are alive"
            )
        return NodeClass(self._owner.get(name, ""), node.slots, node.slowdown)

    def loss(self, names: Iterable[str]) -> Event:
        """The event that these nodes are lost."""
        return Event(lost=tuple(sorted(self.class_of(name) for name in set(names))))

    def plan(self, event: Event) -> Plan:
        """The best plan for an event.

        Raises
        ------
        PlanError
            When no task can go on.
        """
        now = self.situation
        tasks = self.going_on(event)
        alive = len(now.nodes) - len(event.lost) + len(event.joined)
        capacity = min(now.active + len(event.joined), alive)
        disturbed: dict[str, int] = {}
        for lost in event.lost:
            disturbed[lost.task] = disturbed.get(lost.task, 0) + 1
        key = (tuple(task.work.name for task in tasks), capacity)
        if key not in self._rewards:
            self._rewards[key] = Rewards(now, tasks, capacity)
        counts = self._rewards[key].share_out(disturbed)
        if tasks and not any(counts.values()):
            raise PlanError(f"no task can go on with {capacity} nodes")
        dealt = self.deal(event, counts, self._lost_examples(event))
        return Plan(
            {
                task.work.name: TaskPlan(counts[task.work.name], self._layout(task, dealt[task.work.name]))
                for task in tasks
            }
        )

    def going_on(self, event: Event) -> list[Standing]:
        """Tasks that have nodes, or get some, after the event."""
        return [
            task
            for task in self.situation.tasks
            if task.work.name not in event.finished and (task.nodes or task.work.name in event.launched)
        ]

    def deal(
        self, event: Event, counts: Mapping[str, int], lost: Collection[str]
    ) -> dict[str, tuple[NodeSlots, ...]]:
        """The nodes of every task when `lost` are the ones that the event means."""
        joined = [NodeSlots(f"joined-{k}", slots, slow) for k, (slots, slow) in enumerate(event.joined)]
        return deal(self.situation, self.going_on(event), counts, lost=lost, joined=joined)

    def _lost_examples(self, event: Event) -> list[str]:
        names: list[str] = []
        for kind, same in itertools.groupby(event.lost):
            # The last of a class: the first ones hold the seats that a person looks at first.
            names.extend(self._examples[kind][-len(list(same)) :])
        return names

    def _layout(self, task: Standing, nodes: Sequence[NodeSlots]) -> Candidate | None:
        if not nodes or (task.layout is not None and [n.name for n in nodes] == list(task.nodes)):
            return None
        shape = _shape(nodes)
        if task.layout is not None and shape == _shape([self.situation.nodes[name] for name in task.nodes]):
            return None
        key = (task.work.name, shape)
        if key not in self._found:
            self._found[key] = candidates(task.work, nodes, task.layout)[0]
        return self._found[key]


def _shape(nodes: Sequence[NodeSlots]) -> Shape:
    return tuple(sorted(Counter((node.slots, node.slowdown) for node in nodes).items()))


class Table:
    """Plans for every event that can come next in a situation.

    Parameters
    ----------
    situation
        Where the job stands.
    domains
        Groups of nodes that fail together (a switch, a chassis), by name; empty where unknown.
    """

    def __init__(self, situation: Situation, domains: Sequence[Collection[str]] = ()) -> None:
        self.planner = Planner(situation)
        self.misses = 0
        self._plans: dict[Event, Plan | PlanError] = {}
        for event in self.likely(domains):
            self._plans[event] = self._compute(event)

    def __len__(self) -> int:
        return len(self._plans)

    def likely(self, domains: Sequence[Collection[str]] = ()) -> set[Event]:
        """Events that the table holds plans for."""
        planner = self.planner
        events = {Event(lost=(kind,)) for kind in planner.node_classes}
        for domain in domains:
            kinds = sorted(planner.class_of(name) for name in domain if name in planner.situation.nodes)
            # Classes repeat; a pair of equal ones is possible only where the domain has two such nodes.
            events |= {Event(lost=pair) for pair in set(itertools.combinations(kinds, 2))}
        events |= {Event(joined=(shape,)) for shape in {(k.slots, k.slowdown) for k in planner.node_classes}}
        for task in planner.situation.tasks:
            name = task.work.name
            events.add(Event(finished=(name,)) if task.nodes else Event(launched=(name,)))
        return events

    def fetch(self, event: Event) -> Plan:
        """The plan for an event; computed, and counted in `misses`, where the table has none.

        Raises
        ------
        PlanError
            When no task can go on after the event.
        """
        found = self._plans.get(event)
        if found is None:
            self.misses += 1
            found = self._plans[event] = self._compute(event)
        if isinstance(found, PlanError):
            raise found
        return found

    def _compute(self, event: Event) -> Plan | PlanError:
        try:
            return self.planner.plan(event)
        except PlanError as error:
            return error

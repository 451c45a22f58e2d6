"""What a job would do: at its start, on another number of nodes, and after nodes are lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from unicron_hpc.errors import PlanError
from unicron_hpc.planner import legal
from unicron_hpc.planner.cost import Prediction, predict
from unicron_hpc.planner.holdings import held_by
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.movement import MovePlan, moves, replace_seats
from unicron_hpc.planner.search import Choice, search
from unicron_hpc.planner.situation import Situation
from unicron_hpc.planner.sizes import unit_bytes
from unicron_hpc.planner.standings import standings
from unicron_hpc.planner.start import share_at_start
from unicron_hpc.planner.table import Planner
from unicron_hpc.planner.transition import next_layout
from unicron_hpc.planner.wish import notes
from unicron_hpc.planner.work import NodeSlots, TaskWork


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """One task's layout and what is expected of it.

    Attributes
    ----------
    work, layout, prediction
        What runs, where, how fast.
    nodes
        The task's nodes, with or without a seat.
    choice
        The search behind it; None where the layout stayed as it was.
    moves
        What had to be sent for it; None at the start.
    notes
        What a person should know of it, in sentences.
    """

    work: TaskWork
    layout: Layout
    prediction: Prediction
    nodes: tuple[NodeSlots, ...]
    choice: Choice | None = None
    moves: MovePlan | None = None
    notes: tuple[str, ...] = ()

    @property
    def idle_nodes(self) -> tuple[str, ...]:
        """The task's nodes without a seat."""
        used = {seat.node for seat in self.layout.seats}
        return tuple(n.name for n in self.nodes if n.name not in used)


def at_start(works: Sequence[TaskWork], nodes: Sequence[NodeSlots]) -> dict[str, Outlook]:
    """Every task's first layout, on the nodes that the job would give it.

    Raises
    ------
    PlanError
        When minimum sizes or memory leave no way.
    """
    dealt = share_at_start({work.name: work for work in works}, nodes, len(nodes))
    return {work.name: _first(work, dealt[work.name]) for work in works}


def _first(work: TaskWork, nodes: Sequence[NodeSlots]) -> Outlook:
    choice = search(work, nodes)
    legal.check(choice.layout, work)
    return Outlook(
        work=work,
        layout=choice.layout,
        prediction=choice.prediction,
        nodes=tuple(nodes),
        choice=choice,
        notes=notes(work, nodes, choice.layout),
    )


def after_loss(
    running: Mapping[str, Outlook], lost: Collection[str], spares: Sequence[NodeSlots]
) -> dict[str, Outlook]:
    """Every task's layout once `lost` are gone: on spares where they suffice, else by a new plan.

    Raises
    ------
    PlanError
        For names that are no nodes, and when no task can go on.
    """
    mine = {n.name for now in running.values() for n in now.nodes} | {n.name for n in spares}
    unknown = sorted(set(lost) - mine)
    if unknown:
        raise PlanError(f"no node {', '.join(unknown)} in this job", hint=f"nodes: {', '.join(sorted(mine))}")
    free = [n for n in spares if n.name not in lost]
    after: dict[str, Outlook] = {}
    for name, now in running.items():
        moved = replace_seats(now.layout, lost, free)
        if moved is None:
            return _shared_anew(running, lost, spares)
        nodes = [n for n in now.nodes if n.name not in lost]
        names = {n.name for n in nodes}
        taken = [n for n in free if any(seat.node == n.name for seat in moved.seats) and n.name not in names]
        free = [n for n in free if n not in taken]
        after[name] = _changed(now, [*nodes, *taken], lost, moved)
    return after


def _shared_anew(
    running: Mapping[str, Outlook], lost: Collection[str], spares: Sequence[NodeSlots]
) -> dict[str, Outlook]:
    works = [now.work for now in running.values()]
    everyone = [n for now in running.values() for n in now.nodes] + list(spares)
    if len(works) == 1:
        now = next(iter(running.values()))
        return {works[0].name: _changed(now, [n for n in everyone if n.name not in lost], lost, None)}
    held = {name: now.nodes for name, now in running.items()}
    layouts = {name: now.layout for name, now in running.items()}
    tasks = standings({work.name: work for work in works}, everyone, held, layouts)
    planner = Planner(
        Situation(tasks=tasks, nodes={n.name: n for n in everyone}, active=len(everyone) - len(spares))
    )
    event = planner.loss(lost)
    plan = planner.plan(event)
    dealt = planner.deal(event, {name: task.nodes for name, task in plan.tasks.items()}, lost)
    after = {}
    for name, now in running.items():
        if not dealt[name]:
            continue
        same = {n.name for n in dealt[name]} == {n.name for n in now.nodes}
        after[name] = now if same else _changed(now, dealt[name], lost, None)
    return after


def _changed(
    now: Outlook, nodes: Sequence[NodeSlots], lost: Collection[str], layout: Layout | None
) -> Outlook:
    """The task on other nodes; on `layout` where that is decided."""
    work = now.work
    sizes = unit_bytes(work, now.layout.tensor)
    held = held_by(now.layout, sizes, tied=work.tied, learned_positions=work.learned_positions)
    held = {seat: units for seat, units in held.items() if seat.node not in lost}
    slowdown = {n.name: n.slowdown for n in nodes}
    if layout is not None:
        plan = moves(layout, held, tied=work.tied, learned_positions=work.learned_positions)
        found = predict(layout, work, slowdown)
        return Outlook(work=work, layout=layout, prediction=found, nodes=tuple(nodes), moves=plan)
    then = next_layout(work, nodes, previous=now.layout, holdings=held)
    legal.check(then.layout, work)
    return Outlook(
        work=work,
        layout=then.layout,
        prediction=predict(then.layout, work, slowdown),
        nodes=tuple(nodes),
        choice=then.choice,
        moves=then.moves,
    )

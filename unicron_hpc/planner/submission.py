"""What the planner decides when a job is submitted: the sizes that its file leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from unicron_hpc.config import Settings
from unicron_hpc.config.settings import TaskSettings
from unicron_hpc.planner import legal
from unicron_hpc.planner.candidate import Candidate
from unicron_hpc.planner.from_settings import node_slots, task_work
from unicron_hpc.planner.hardware import Hardware
from unicron_hpc.planner.search import search
from unicron_hpc.planner.start import share_at_start
from unicron_hpc.planner.wish import notes
from unicron_hpc.planner.work import NodeSlots, TaskWork


class Chosen(msgspec.Struct, frozen=True):
    """Settings with every size that must stay, and what to tell the user.

    Attributes
    ----------
    settings
        As given, with tensor degree and micro-batch size of every task. A depth that was left open stays so:
        it is chosen at the start, for the nodes that have come by then.
    lines
        A sentence for each task of which something was chosen.
    notes
        What they should know of the start (`wish.notes`).
    """

    settings: Settings
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def choose(
    settings: Settings, saved: Mapping[str, int] | None = None, machine: Hardware | None = None
) -> Chosen:
    """Choose what `settings` leave open, for all their nodes.

    Parameters
    ----------
    settings
        Checked settings.
    saved
        The micro-batch size of the checkpoint that a task goes on from, by name. An open size is that one:
        dropout is drawn for each micro-batch by its number, so only then a resumed run draws as before.
    machine
        What runs it; None for the description assumed for each task's device.

    Raises
    ------
    PlanError
        When no layout fits; names the binding constraint and the nearest demand that would fit.
    """
    works = {task.name: _work(task, settings, saved or {}, machine) for task in settings.tasks}
    nodes = node_slots([f"c{k}" for k in range(1, settings.slurm.nodes + 1)], settings.slurm)
    shares = share_at_start(works, nodes, len(nodes))
    tasks: list[TaskSettings] = []
    lines: list[str] = []
    remarks: list[str] = []
    for task in settings.tasks:
        work, mine = works[task.name], shares[task.name]
        found = search(work, mine)
        legal.check(found.layout, work)
        remarks += notes(work, mine, found.layout)
        chosen: dict[str, Any] = {
            "tensor_model_parallel_size": found.layout.tensor,
            "micro_batch_size": found.layout.micro_batch_size,
        }
        if line := _line(task, found.candidate, mine):
            lines.append(line)
        tasks.append(task.model_copy(update={"train": task.train.model_copy(update=chosen)}))
    return Chosen(settings.model_copy(update={"tasks": tuple(tasks)}), tuple(lines), tuple(remarks))


def _work(
    task: TaskSettings, settings: Settings, saved: Mapping[str, int], machine: Hardware | None
) -> TaskWork:
    work = task_work(task, settings.slurm, machine=machine)
    size = saved.get(task.name)
    if work.micro_batch_size is None and size and work.global_batch_size % size == 0:
        return replace(work, micro_batch_size=size)
    return work


def _line(task: TaskSettings, best: Candidate, nodes: Sequence[NodeSlots]) -> str:
    """What was chosen, in words; nothing where there was no choice."""
    train = task.train
    parts = []
    if train.tensor_model_parallel_size is None and max(node.slots for node in nodes) > 1:
        parts.append(f"tensor_model_parallel_size {best.tensor}")
    if train.micro_batch_size is None:
        parts.append(f"micro_batch_size {best.micro_batch_size}")
    if train.pipeline_model_parallel_size is None:
        parts.append(f"a start with {best.pipelines()}")
    if not parts:
        return ""
    where = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    return f"task {task.name} on {where}: the planner chose {', '.join(parts)}"

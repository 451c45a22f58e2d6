"""Where the job stands: tasks, their nodes and curves; and Unicron's reward of standing elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from unicron_hpc.errors import PlanError
from unicron_hpc.planner.allocation import allocate
from unicron_hpc.planner.curves import Curve
from unicron_hpc.planner.layout import Layout
from unicron_hpc.planner.partition import FloatArray, IntArray
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Faults per node and second: 4.2 per 1,000 node-days, measured on a pre-training cluster of 400 servers
#: (fault trace of InfiniteHBD, SIGCOMM 2025).
FAULT_RATE = 4.2 / 1000 / 86400
#: Seconds of a transition beside the movement of state.
TRANSITION_SECONDS = 5.0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One task in the job.

    Attributes
    ----------
    work
        What it asks for, with weight and least nodes.
    nodes
        Names of the nodes that it has now; none when it waits.
    curve
        Its throughput on any number of nodes.
    layout
        What runs now; None when it waits. Its tensor degree and micro-batch size stay.
    """

    work: TaskWork
    nodes: tuple[str, ...]
    curve: Curve
    layout: Layout | None = None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The whole job.

    Attributes
    ----------
    tasks
        In the order of the file; running ones and waiting ones.
    nodes
        All nodes alive, by name, the tasks' and the idle ones.
    active
        Most nodes that tasks may use together; the others are spares.
    fault_rate
        Faults per node and second.
    transition_seconds
        Seconds of a transition beside the movement of state.
    """

    tasks: tuple[Standing, ...]
    nodes: Mapping[str, NodeSlots]
    active: int
    fault_rate: float = FAULT_RATE
    transition_seconds: float = TRANSITION_SECONDS

    @property
    def capacity(self) -> int:
        """Nodes that tasks may use now: a spare steps in as long as there is one."""
        return min(self.active, len(self.nodes))

    def idle(self) -> tuple[str, ...]:
        """Nodes without a task, fastest first, among equals in the order of `nodes`."""
        used = {name for task in self.tasks for name in task.nodes}
        free = [node for name, node in self.nodes.items() if name not in used]
        return tuple(node.name for node in sorted(free, key=lambda n: n.slowdown))


def expected_running(situation: Situation, nodes: int) -> float:
    """Seconds until the next fault with `nodes` nodes at work: Unicron's D_running, faults independent."""
    return 1.0 / (situation.fault_rate * max(nodes, 1))


def transition_seconds(task: Standing, situation: Situation, slots: int) -> FloatArray:
    """Seconds until the task trains again on 0 .. N nodes (Unicron's D_transition).

    All receivers work at once, so the time is that of the fullest rank's state through its share of a node's
    network.
    """
    share = task.work.hardware.inter_bandwidth / max(slots, 1)
    result: FloatArray = situation.transition_seconds + task.curve.state_bytes / share
    return result


class Rewards:
    """Unicron's G for every task and number of nodes, and the nodes that change hands.

    G = weight T(x') D_running(n') - [x' differs, or a worker was lost] weight T(x) D_transition.

    Parameters
    ----------
    situation
        Where the job stands before the event.
    tasks
        Those that go on.
    capacity
        n', the nodes to share out.

    Attributes
    ----------
    gain, moves
        Shapes (tasks, capacity + 1), for an event that takes no worker from any task. A task's
        1 .. min_nodes - 1 nodes are not allowed. Zero is allowed only where the minimum sizes together
        exceed the capacity: a task that can have its minimum gets it.
    """

    def __init__(self, situation: Situation, tasks: Sequence[Standing], capacity: int) -> None:
        nodes = np.arange(capacity + 1)
        lasting = expected_running(situation, capacity)
        slots = max((n.slots for n in situation.nodes.values()), default=1)
        least = [least_nodes(task) for task in tasks]
        scarce = sum(least) > capacity
        self.tasks = tuple(tasks)
        self.gain = np.empty((len(tasks), capacity + 1))
        self.moves = np.empty((len(tasks), capacity + 1), dtype=np.int64)
        self._pauses: list[FloatArray] = []
        for t, task in enumerate(tasks):
            flops = task.work.weight * task.curve.flops[: capacity + 1]
            had = len(task.nodes)
            now = task.work.weight * task.curve.flops[min(had, len(task.curve.flops) - 1)]
            pause = now * transition_seconds(task, situation, slots)[: capacity + 1]
            self._pauses.append(pause)
            self.gain[t] = flops * lasting - np.where(nodes != had, pause, 0.0)
            self.gain[t, : least[t]] = -np.inf
            if scarce:
                self.gain[t, 0] = -pause[0] if had else 0.0
            self.moves[t] = np.abs(nodes - had)

    def after_loss(self, lost: Mapping[str, int]) -> tuple[FloatArray, IntArray]:
        """(gain, moves) when tasks have lost workers: staying at the old size is a change too."""
        gain, moves = self.gain, self.moves
        hit = [t for t, task in enumerate(self.tasks) if lost.get(task.work.name)]
        if hit:
            gain, moves = gain.copy(), moves.copy()
        for t in hit:
            had, gone = len(self.tasks[t].nodes), lost[self.tasks[t].work.name]
            if had < gain.shape[1]:
                gain[t, had] -= self._pauses[t][had]
            moves[t] = np.abs(np.arange(gain.shape[1]) - (had - gone))
        return gain, moves

    def share_out(self, lost: Mapping[str, int]) -> dict[str, int]:
        """Nodes for each task by name: the best reward, moving least among equals.

        Raises
        ------
        PlanError
            When no allocation is allowed.
        """
        if not self.tasks:
            return {}
        gain, moves = self.after_loss(lost)
        given = allocate(gain, gain.shape[1] - 1, moves)
        return {task.work.name: int(k) for task, k in zip(self.tasks, given, strict=True)}


def least_nodes(task: Standing) -> int:
    """Fewest nodes on which the task runs: the user's minimum, and what its memory asks for.

    Raises
    ------
    PlanError
        When it fits on no number of nodes of the curve.
    """
    fits = np.flatnonzero(task.curve.flops > 0)
    if not len(fits):
        raise PlanError(
            f"the model fits on none of 1 to {len(task.curve.flops) - 1} nodes",
            where=f"task '{task.work.name}'",
            hint="give it more nodes, or a larger tensor_model_parallel_size",
        )
    return max(int(fits[0]), task.work.min_nodes)


def check_minimums(tasks: Sequence[Standing], capacity: int) -> None:
    """Refuse a job whose tasks cannot all have their minimum.

    Raises
    ------
    PlanError
        Naming the tasks' minimums and the number of nodes that would do.
    """
    least = {task.work.name: least_nodes(task) for task in tasks}
    if sum(least.values()) > capacity:
        names = ", ".join(f"{name} {count}" for name, count in least.items())
        raise PlanError(
            f"min_nodes: the tasks need {sum(least.values())} nodes ({names}), there are {capacity}",
            hint=f"{sum(least.values())} nodes would do, or smaller min_nodes",
        )

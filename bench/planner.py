"""How long the planner takes on one core: best layout, allocation, table, fetch; and how that grows."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from unicron_hpc.planner.allocation import allocate
from unicron_hpc.planner.curves import throughput
from unicron_hpc.planner.deal import deal
from unicron_hpc.planner.hardware import hardware
from unicron_hpc.planner.search import search
from unicron_hpc.planner.situation import Rewards, Situation, Standing
from unicron_hpc.planner.table import Event, Planner, Table
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: What each figure may be at most: seconds, and megabytes for the table.
BARS = {"best_layout": 0.2, "allocation": 0.05, "table": 2.0, "fetch": 0.001, "table_mb": 64.0}
NODES, SLOTS, TASKS = 2048, 8, 20
GROWTH = (16, 64, 256, 1024, 2048, 4096, 16384)
#: Nodes under one switch in the table's failure domains.
DOMAIN = 32
#: (layers, width, heads) of the tasks that share the cluster.
MODELS = ((24, 2048, 16), (32, 4096, 32), (40, 5120, 40), (48, 8192, 64), (24, 1024, 16))


def gpt(layers: int, hidden: int, heads: int, **changes: Any) -> TaskWork:
    """A GPT in bf16 with fp32 main weights on 80 GB devices."""
    values: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "seq_length": 2048,
        "vocab_size": 51200,
        "global_batch_size": 1024,
        "parameter_bytes": 2,
        "optimizer_bytes": 12,
        "activation_bytes": 2,
        "recompute": "selective",
        "hardware": hardware("a100-80gb"),
    }
    return TaskWork(**(values | changes))


def median(action: Callable[[], object], rounds: int) -> float:
    """Median seconds of an action on one core.

    The planner only computes, in one thread, so its processor time is what the action takes on a core of its
    own; the clock on the wall would count what else the machine does.
    """
    times = []
    for _ in range(rounds):
        began = time.process_time()
        action()
        times.append(time.process_time() - began)
    return statistics.median(times)


def names(count: int) -> list[NodeSlots]:
    return [NodeSlots(f"n{k}", SLOTS) for k in range(count)]


def best_layout(count: int, rounds: int) -> float:
    """96 layers, tensor degree and micro-batch size free."""
    work, nodes = gpt(96, 12288, 96, global_batch_size=3072), names(count)
    return median(lambda: search(work, nodes), rounds)


def curves(tasks: int, nodes: int) -> np.ndarray:
    """Throughput curves of many shapes: they rise, flatten, and have steps."""
    rng = np.random.default_rng(1)
    count = np.arange(nodes + 1)
    rows = []
    for t in range(tasks):
        size = rng.uniform(0.02, 1.0) * nodes
        steps = count // rng.integers(1, 9) * 1.0 if t % 2 else count
        rows.append(rng.uniform(0.5, 2.0) * 3e14 * steps / (1 + count / size))
    return np.array(rows)


def allocation(nodes: int, rounds: int) -> float:
    """From curves to nodes per task, rewards included."""
    flops = curves(TASKS, nodes)
    weights = np.linspace(0.5, 2.4, TASKS)[:, None]
    count = np.arange(nodes + 1)
    held = np.full(TASKS, nodes // TASKS)
    moves = np.abs(count[None, :] - held[:, None])

    def share_out() -> None:
        reward = weights * flops * (1e7 / nodes)
        reward -= np.where(moves > 0, (weights * flops)[np.arange(TASKS), held][:, None] * 30.0, 0.0)
        if nodes >= TASKS:
            reward[:, 0] = -np.inf  # every task runs
        allocate(reward, nodes, moves)

    return median(share_out, rounds)


def situation(nodes: int) -> Situation:
    """Twenty running tasks that share all nodes."""
    alive = {node.name: node for node in names(nodes)}
    waiting = []
    for k in range(TASKS):
        work = gpt(*MODELS[k % len(MODELS)], name=f"task{k}", weight=0.5 + 0.1 * k, min_nodes=2)
        work = replace(work, tensor=8, micro_batch_size=1)
        waiting.append(Standing(work=work, nodes=(), curve=throughput(work, nodes + 1, SLOTS)))
    now = Situation(tasks=tuple(waiting), nodes=alive, active=nodes)
    counts = Rewards(now, now.tasks, now.capacity).share_out({})
    dealt = deal(now, now.tasks, counts)
    tasks = tuple(
        replace(
            task,
            nodes=tuple(node.name for node in dealt[task.work.name]),
            layout=search(task.work, dealt[task.work.name]).layout,
        )
        for task in waiting
    )
    return replace(now, tasks=tasks)


def measure(rounds: int, quick: bool) -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {
        "best_layout": best_layout(NODES, rounds),
        "allocation": allocation(NODES, rounds),
    }
    began = time.process_time()
    now = situation(NODES)
    figures["curves_and_first_layouts"] = time.process_time() - began
    every = list(now.nodes)
    domains = [every[k : k + DOMAIN] for k in range(0, NODES, DOMAIN)]
    figures["table"] = median(lambda: Table(now, domains), max(1, rounds // 2))
    tracemalloc.start()
    table = Table(now, domains)
    figures["table_mb"] = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    figures["events"] = len(table)
    lost = now.tasks[-1].nodes[0]

    def fetch() -> None:
        event = table.planner.loss([lost])
        plan = table.fetch(event)
        table.planner.deal(event, {name: task.nodes for name, task in plan.tasks.items()}, [lost])

    figures["fetch"] = median(fetch, 50)
    miss = Event(lost=table.planner.loss([now.tasks[0].nodes[0]]).lost, finished=(now.tasks[1].work.name,))
    figures["miss"] = median(lambda: Planner(now).plan(miss), max(1, rounds // 2))
    sizes = [count for count in GROWTH if count <= NODES] if quick else GROWTH
    figures["growth"] = {str(count): best_layout(count, max(1, rounds // 2)) for count in sizes}
    figures["growth_allocation"] = {str(count): allocation(count, max(1, rounds // 2)) for count in sizes}
    figures["n"] = rounds
    return figures


def show(figures: dict[str, Any]) -> None:
    """A table for people."""
    what = {
        "best_layout": f"best layout, {NODES} nodes of {SLOTS}, 96 layers",
        "allocation": f"allocation, {TASKS} tasks over {NODES} nodes",
        "table": f"lookup table, {TASKS} tasks over {NODES} nodes, {figures['events']} events",
        "fetch": "fetch of a plan, nodes named",
        "table_mb": "memory of the table",
    }
    for key, text in what.items():
        unit = "MB" if key == "table_mb" else "s"
        verdict = "ok" if figures[key] <= BARS[key] else "TOO SLOW"
        print(f"{text:62s} {figures[key]:10.5f} {unit:2s}  at most {BARS[key]:g} {unit}  {verdict}")
    print(f"{'a miss, computed':62s} {figures['miss']:10.5f} s")
    print(f"{'curves and first layouts, before':62s} {figures['curves_and_first_layouts']:10.5f} s")
    print("growth: nodes, best layout s, allocation s")
    for count, seconds in figures["growth"].items():
        print(f"{count:>8s} {seconds:10.5f} {figures['growth_allocation'][count]:10.5f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument("--rounds", type=int, default=7, help="times each is measured; the median counts")
    parser.add_argument("--quick", action="store_true", help=f"growth up to {NODES} nodes only")
    chosen = parser.parse_args()
    figures = measure(chosen.rounds, chosen.quick)
    if chosen.json:
        print(json.dumps(figures))
    else:
        show(figures)
    return 0 if all(figures[key] <= bar for key, bar in BARS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())

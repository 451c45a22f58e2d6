"""`unicron plan TRAIN.YAML`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.config import Settings, load
from unicron_hpc.errors import ConfigError
from unicron_hpc.planner.curves import throughput
from unicron_hpc.planner.describe import described
from unicron_hpc.planner.from_settings import node_slots, task_work
from unicron_hpc.planner.hardware import Hardware, hardware, known
from unicron_hpc.planner.outlook import Outlook, after_loss, at_start
from unicron_hpc.planner.work import NodeSlots, TaskWork
from unicron_hpc.slurm import hostlists

#: Beyond this a typing error is likelier than such a cluster.
MOST_NODES = 65536
_COUNT = click.IntRange(1, MOST_NODES)


@click.command("plan", context_settings={"max_content_width": 110})
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="TRAIN.YAML")
@click.option(
    "--nodes", type=click.IntRange(1, MOST_NODES), help="Nodes that train; `slurm.nodes` when left out."
)
@click.option("--spares", type=click.IntRange(0, MOST_NODES), help="Spares; `slurm.spares` when left out.")
@click.option("--lose", metavar="NODES", help="Show what would happen if these nodes were lost, e.g. c3,c7.")
@click.option(
    "--slow",
    multiple=True,
    metavar="NODES=FACTOR",
    help="Nodes that take this many times as long as others, e.g. c3=1.3; may be repeated.",
)
@click.option("--sweep", is_flag=True, help="Show throughput against node count.")
@click.option(
    "--free", is_flag=True, help="Let the planner choose the degrees that the file fixes for the start."
)
@click.option(
    "--hardware",
    "machine",
    metavar="NAME|FILE",
    help=f"What runs it: {', '.join(known())}, or a JSON file like theirs. By `train.device` when left out.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Change a setting; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@ends_with_errors
def command(
    file: Path,
    nodes: int | None,
    spares: int | None,
    lose: str | None,
    slow: tuple[str, ...],
    sweep: bool,
    free: bool,
    machine: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the layout that TRAIN.YAML would get on a number of nodes, and why others lost.

    On `slurm.nodes` nodes that is the layout at the start. On any other number it is what the job would go
    on with: tensor and micro-batch size as the file fixes them, depth as the planner chooses. Nodes are
    called c1, c2, ... unless `slurm.nodelist` names them. Needs neither torch nor Slurm.

    \b
      unicron plan train.yaml --nodes 14
      unicron plan train.yaml --lose c3,c7
      unicron plan train.yaml --nodes 64 --sweep --hardware h100-80gb
    """
    settings = load(file, overrides)
    count = settings.slurm.nodes if nodes is None else nodes
    extra = settings.slurm.spares if spares is None else spares
    everyone = _slowed(node_slots(_names(settings, count + extra), settings.slurm), slow)
    works = _works(settings, count, _hardware(machine), free=free)
    if sweep:
        _show_sweep(_sweep(works, everyone[:count]), as_json)
        return
    before = at_start(works, everyone[:count])
    if lose is None:
        _show(before, as_json, None)
        return
    lost = hostlists.expand(lose)
    _show(after_loss(before, lost, everyone[count:]), as_json, before, lost)


def _names(settings: Settings, count: int) -> list[str]:
    listed = list(settings.slurm.nodelist or ())
    return listed[:count] if len(listed) >= count else [f"c{k}" for k in range(1, count + 1)]


def _slowed(nodes: Sequence[NodeSlots], slow: Sequence[str]) -> tuple[NodeSlots, ...]:
    factors: dict[str, float] = {}
    for text in slow:
        names, _, factor = text.partition("=")
        try:
            value = float(factor)
        except ValueError:
            value = 0.0
        if not 0.1 <= value <= 1000:
            raise ConfigError(
                "is not of the form NODES=FACTOR with a factor from 0.1 to 1000",
                where=f"--slow {text}",
                hint="e.g. --slow c3=1.3",
            )
        factors |= dict.fromkeys(hostlists.expand(names), value)
    unknown = sorted(factors.keys() - {node.name for node in nodes})
    if unknown:
        raise ConfigError(f"no node {', '.join(unknown)} in this job", where="--slow")
    return tuple(replace(node, slowdown=factors.get(node.name, 1.0)) for node in nodes)


def _works(settings: Settings, nodes: int, machine: Hardware | None, *, free: bool) -> list[TaskWork]:
    works = [task_work(task, settings.slurm, machine=machine) for task in settings.tasks]
    if free:
        return [replace(work, tensor=None, pipeline=None) for work in works]
    if nodes != settings.slurm.nodes:
        return [replace(work, pipeline=None) for work in works]
    return works


def _hardware(name: str | None) -> Hardware | None:
    if name is None:
        return None
    if name in known() or not name.endswith(".json"):
        return hardware(name)
    try:
        return msgspec.json.decode(Path(name).read_bytes(), type=Hardware)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"no hardware description: {error}", where=name) from error


def _show(
    plans: Mapping[str, Outlook],
    as_json: bool,
    before: Mapping[str, Outlook] | None,
    lost: Sequence[str] = (),
) -> None:
    if as_json:
        shown = _flat(plans)
        if before is not None:
            shown |= {"lost": list(lost), "before": _flat(before)}
        click.echo(json.dumps(shown))
        return
    from unicron_hpc.cli.plan_tables import show_plan

    for name, outlook in plans.items():
        show_plan(outlook, before.get(name) if before else None)
    for name in (before or {}).keys() - plans.keys():
        click.echo(f"task {name}: waits, no nodes are left for it")


def _flat(plans: Mapping[str, Outlook]) -> dict[str, Any]:
    """One task's fields at the top; several under `tasks`, in the order of the file."""
    each = [described(outlook) for outlook in plans.values()]
    return each[0] if len(each) == 1 else {"tasks": each}


def _sweep(works: Sequence[TaskWork], nodes: Sequence[NodeSlots]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for work in works:
        curve = throughput(replace(work, pipeline=None), len(nodes), nodes[0].slots)
        found[work.name] = [
            {
                "nodes": count,
                "iteration_seconds": float(curve.seconds[count]) if curve.flops[count] else None,
                "flops": float(curve.flops[count]),
                "tokens_per_second": work.global_batch_size * work.seq_length / float(curve.seconds[count]),
            }
            for count in range(1, len(nodes) + 1)
        ]
    return found


def _show_sweep(found: dict[str, list[dict[str, Any]]], as_json: bool) -> None:
    if as_json:
        only = next(iter(found.values()))
        click.echo(json.dumps({"sweep": only if len(found) == 1 else found}))
        return
    from unicron_hpc.cli.plan_tables import show_sweep

    for name, rows in found.items():
        show_sweep(name, rows)

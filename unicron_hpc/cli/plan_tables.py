"""Plans as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from unicron_hpc.planner.describe import lost_out
from unicron_hpc.planner.layout import Layout, Replica
from unicron_hpc.planner.outlook import Outlook

#: Longest table of replicas; equal ones share a row, so only odd plans are cut.
_MOST_ROWS = 24
#: Moves listed one by one.
_MOST_MOVES = 12


def show_plan(outlook: Outlook, before: Outlook | None) -> None:
    """The layout, what is expected of it, what moves, and why others lost."""
    console = Console()
    layout, prediction = outlook.layout, outlook.prediction
    console.print(f"[bold]task {outlook.work.name}[/bold] on {len(outlook.nodes)} nodes", highlight=False)
    table = Table("replicas", "micro-batches", "stage", "layers", "nodes", "seconds")
    rows = 0
    for same, where in _alike(layout):
        replica = layout.replicas[same[0]]
        if rows + len(replica.stages) > _MOST_ROWS:
            table.add_row("...")
            break
        for k, stage in enumerate(replica.stages):
            head = (_span(same), str(replica.micro_batches)) if k == 0 else ("", "")
            seconds = f"{prediction.replica_seconds[same[0]]:.4g}" if k == 0 else ""
            table.add_row(*head, str(k), f"{stage.first}-{stage.last}", where[k], seconds)
            rows += 1
        table.add_section()
    console.print(table)
    console.print(
        f"tensor {layout.tensor}, micro-batch size {layout.micro_batch_size}, {layout.world_size} ranks\n"
        f"{prediction.iteration_seconds:.4g} s per iteration"
        f" (gradient sum and optimizer {prediction.sync_seconds:.3g} s),"
        f" {prediction.flops:.3g} FLOP/s on {outlook.work.hardware.name}\n"
        f"memory of the fullest rank {_bytes(prediction.memory_bytes)} of {_bytes(prediction.memory_limit)}\n"
        f"idle nodes: {', '.join(outlook.idle_nodes) or 'none'}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    for note in outlook.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if before is not None:
        ratio = prediction.iteration_seconds / before.prediction.iteration_seconds
        console.print(f"before: {before.prediction.iteration_seconds:.4g} s per iteration, now x {ratio:.3g}")
    if outlook.moves is not None:
        _show_moves(console, outlook)
    _show_runners_up(console, outlook)


def _alike(layout: Layout) -> list[tuple[list[int], list[str]]]:
    """Replicas cut alike with equal shares: (their numbers, per stage the nodes of all of them)."""
    found: dict[tuple[object, ...], list[int]] = {}
    for r, replica in enumerate(layout.replicas):
        key = (tuple(s.num_layers for s in replica.stages), replica.micro_batches)
        found.setdefault(key, []).append(r)
    shown = []
    for same in found.values():
        stages = range(len(layout.replicas[same[0]].stages))
        shown.append((same, [_nodes(layout, [layout.replicas[r] for r in same], k) for k in stages]))
    return shown


def _nodes(layout: Layout, replicas: Sequence[Replica], stage: int) -> str:
    names = [layout.seats[replica.stages[stage].ranks[0]].node for replica in replicas]
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, ... {names[-1]}"


def _span(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    return f"{len(numbers)} ({numbers[0]}-{numbers[-1]})" if _running(numbers) else f"{len(numbers)}"


def _running(numbers: Sequence[int]) -> bool:
    return numbers[-1] - numbers[0] == len(numbers) - 1


def _show_moves(console: Console, outlook: Outlook) -> None:
    assert outlook.moves is not None
    seats = outlook.layout.seats
    across = [m for m in outlook.moves.moves if seats[m.source].node != seats[m.target].node]
    total = sum(m.bytes for m in outlook.moves.moves)
    console.print(
        f"state that moves: {len(outlook.moves.moves)} units, {_bytes(total)},"
        f" {_bytes(sum(m.bytes for m in across))} across the network",
        highlight=False,
    )
    for move in outlook.moves.moves[:_MOST_MOVES]:
        console.print(
            f"  {move.unit}: {seats[move.source].node} -> {seats[move.target].node}, {_bytes(move.bytes)}",
            highlight=False,
        )
    if len(outlook.moves.moves) > _MOST_MOVES:
        console.print(f"  ... {len(outlook.moves.moves) - _MOST_MOVES} more (--json lists all)")
    if outlook.moves.missing:
        names = ", ".join(unit for unit, _ in outlook.moves.missing)
        console.print(f"[bold]no survivor can send {names}[/bold]: a checkpoint must", highlight=False)


def _show_runners_up(console: Console, outlook: Outlook) -> None:
    others = lost_out(outlook)
    if not others:
        return
    table = Table("lost out", "s / iteration", "slower by", "mostly through")
    for other in others[:5]:
        seconds, slower = f"{other['iteration_seconds']:.4g}", f"{other['slower_by']:.1%}"
        table.add_row(other["layout"], seconds, slower, other["why"])
    console.print(table)


def show_sweep(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Throughput against node count, with a bar for the eye."""
    table = Table("nodes", "s / iteration", "FLOP/s", "tokens/s", "")
    most = max((row["flops"] for row in rows), default=0.0) or 1.0
    step = max(1, len(rows) // 40)
    for row in rows:
        if (row["nodes"] - 1) % step and row["nodes"] != len(rows):
            continue
        seconds = "does not fit" if row["iteration_seconds"] is None else f"{row['iteration_seconds']:.4g}"
        bar = "#" * round(30 * row["flops"] / most)
        table.add_row(
            str(row["nodes"]), seconds, f"{row['flops']:.3g}", f"{row['tokens_per_second']:.4g}", bar
        )
    console = Console()
    console.print(f"[bold]task {name}[/bold]")
    console.print(table)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"

"""Which stage runs where: the placement that lets least state cross the network.

The unit of placement is a block: the seats of one tensor group. Stages that find a block holding exactly
their units take it at once (no placement that moves less exists: bytes missing obey the triangle inequality,
so any optimum can be swapped into one that does so); what remains is an assignment problem, solved exactly
by scipy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from unicron_hpc.planner.holdings import HeldUnit, newest
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.partition import FloatArray
from unicron_hpc.planner.units import UnitKey, units_of
from unicron_hpc.planner.work import NodeSlots

#: Assignment problems above this many stages are solved in slices of it, in stage order.
SLICE = 1024


def place(
    layout: Layout,
    previous: Layout | None,
    nodes: Sequence[NodeSlots],
    holdings: Mapping[Seat, Collection[HeldUnit]],
    *,
    tied: bool = True,
    learned_positions: bool = True,
) -> Layout:
    """Give the layout's ranks the seats that let least state cross the network.

    Parameters
    ----------
    layout
        The work; its own seats say only which speed of node each stage was planned for.
    previous
        What ran before: between equally good seats a rank number keeps its seat. None for a first layout.
    nodes
        Nodes that may be used.
    holdings
        What the surviving processes hold, by seat.
    tied, learned_positions
        Of the model.

    Returns
    -------
    Layout
        The same work on other seats. Seats that alone hold something needed are used before others.
    """
    tensor = layout.tensor
    speed = {n.name: n.slowdown for n in nodes}
    span = _span(layout, nodes)
    blocks = [
        tuple(Seat(n.name, first + k) for k in range(tensor * span))
        for n in nodes
        for first in range(0, n.slots // (tensor * span) * tensor * span, tensor * span)
    ]
    needs = _needs(layout, span, tied=tied, learned_positions=learned_positions)
    iteration = newest(holdings, tensor)
    has, size = _held(blocks, holdings, tensor, iteration)
    classes = [speed.get(group[0].node, 1.0) for group in _bundles(layout, span)]
    free = [speed[block[0].node] for block in blocks]
    before = _before(layout, previous, blocks, span)
    chosen = _exact_matches(needs, has, classes, free, before)
    sole = _sole(has)
    if len(blocks) > len(needs) <= SLICE and not sole <= set(chosen.values()):
        # A perfect match could take the seat of a block that alone holds something: all at once then.
        chosen = {}
    groups = [g for g in range(len(needs)) if g not in chosen]
    rest = [b for b in range(len(blocks)) if b not in set(chosen.values())]
    for first in range(0, len(groups), SLICE):
        some = groups[first : first + SLICE]
        cost = _cost([needs[g] for g in some], [has[b] for b in rest], size, [b in sole for b in rest])
        for row, g in enumerate(some):
            for column, b in enumerate(rest):
                if classes[g] != free[b]:
                    cost[row, column] = np.inf
                elif before.get(g) == b:
                    cost[row, column] -= 0.5
        chosen.update({some[r]: rest[c] for r, c in _assign(cost)})
        taken = set(chosen.values())
        rest = [b for b in rest if b not in taken]
    seats: list[Seat] = []
    for g in range(len(needs)):
        seats.extend(_inside(blocks[chosen[g]], holdings, tensor, iteration))
    return layout.with_seats(tuple(seats))


def _assign(cost: FloatArray) -> list[tuple[int, int]]:
    finite = cost[np.isfinite(cost)]
    # A seat of another speed is the last resort, not an impossibility: the layout must be placed.
    worst = float(np.abs(finite).max()) * (len(cost) + 1) + 1 if len(finite) else 1.0
    rows, columns = linear_sum_assignment(np.where(np.isfinite(cost), cost, worst))
    return [(int(r), int(c)) for r, c in zip(rows, columns, strict=True)]


def _bundles(layout: Layout, span: int) -> list[tuple[Seat, ...]]:
    """Seats that are placed together, in rank order of their first rank."""
    step = layout.tensor * span
    order = [rank for replica in layout.replicas for stage in replica.stages for rank in stage.ranks]
    return [tuple(layout.seats[r] for r in order[k : k + step]) for k in range(0, len(order), step)]


def _span(layout: Layout, nodes: Sequence[NodeSlots]) -> int:
    """Stages placed together: whole pipelines where they tile every node, so that they stay inside one."""
    depths = {len(replica.stages) for replica in layout.replicas}
    depth = max(depths)
    tiles = len(depths) == 1 and all(n.slots // layout.tensor % depth == 0 for n in nodes)
    return depth if tiles else 1


def _needs(layout: Layout, span: int, *, tied: bool, learned_positions: bool) -> list[frozenset[UnitKey]]:
    """Units of each bundle, keyed by position in the bundle so that each stage keeps its own block."""
    found: list[set[UnitKey]] = []
    for k, position in enumerate(layout.positions()):
        group = k // layout.tensor
        if group // span == len(found):
            found.append(set())
        slot = group % span * layout.tensor + position.tensor_index
        for unit in units_of(position, tied=tied, learned_positions=learned_positions):
            found[-1].add((unit, slot))
    return [frozenset(keys) for keys in found]


def _held(
    blocks: Sequence[tuple[Seat, ...]],
    holdings: Mapping[Seat, Collection[HeldUnit]],
    tensor: int,
    iteration: int | None,
) -> tuple[list[frozenset[UnitKey]], dict[str, int]]:
    """(usable units of each block, bytes of each unit)."""
    size: dict[str, int] = {}
    has: list[frozenset[UnitKey]] = []
    for block in blocks:
        keys: set[UnitKey] = set()
        for first in range(0, len(block), tensor):
            for h in (h for seat in block[first : first + tensor] for h in holdings.get(seat, ())):
                if h.tensor == tensor and h.iteration == iteration:
                    keys.add((h.unit, first + h.tensor_index))
                    size[h.unit] = h.bytes
        has.append(frozenset(keys))
    return has, size


def _before(
    layout: Layout, previous: Layout | None, blocks: Sequence[tuple[Seat, ...]], span: int
) -> dict[int, int]:
    """Block that held the same rank numbers in the previous layout."""
    if previous is None:
        return {}
    where = {seat: b for b, block in enumerate(blocks) for seat in block}
    step = layout.tensor * span
    found = {}
    for g in range(layout.world_size // step):
        if g * step < previous.world_size and previous.seats[g * step] in where:
            found[g] = where[previous.seats[g * step]]
    return found


def _exact_matches(
    needs: Sequence[frozenset[UnitKey]],
    has: Sequence[frozenset[UnitKey]],
    classes: Sequence[float],
    free: Sequence[float],
    before: Mapping[int, int],
) -> dict[int, int]:
    """Groups that find a block of their speed holding exactly what they need."""
    offers: dict[tuple[frozenset[UnitKey], float], list[int]] = {}
    for b, keys in enumerate(has):
        if keys:
            offers.setdefault((keys, free[b]), []).append(b)
    chosen: dict[int, int] = {}
    for g, keys in enumerate(needs):  # those that can stay where they were choose first
        b = before.get(g, -1)
        if b in offers.get((keys, classes[g]), ()):
            offers[(keys, classes[g])].remove(b)
            chosen[g] = b
    for g, keys in enumerate(needs):
        if g not in chosen and offers.get((keys, classes[g])):
            chosen[g] = offers[(keys, classes[g])].pop(0)
    return chosen


def _cost(
    needs: Sequence[frozenset[UnitKey]],
    has: Sequence[frozenset[UnitKey]],
    size: Mapping[str, int],
    sole: Sequence[bool],
) -> FloatArray:
    """Bytes that each group lacks on each block, less a bonus for blocks that alone hold something."""
    keys = sorted(set().union(*needs))
    index = {key: k for k, key in enumerate(keys)}
    bytes_ = np.array([float(size.get(unit, 0)) for unit, _ in keys])
    need = _incidence(needs, index)
    held = _incidence(has, index)
    cost = (need * bytes_).sum(axis=1)[:, None] - (need * bytes_) @ held.T
    # A block left without a seat cannot send: what only it holds would have to come from memory or disk.
    total = float(bytes_.sum()) * len(needs) + 1.0
    result: FloatArray = cost - np.array(sole, dtype=np.float64)[None, :] * total
    return result


def _sole(has: Sequence[frozenset[UnitKey]]) -> set[int]:
    """Blocks that alone hold something."""
    copies: dict[UnitKey, list[int]] = {}
    for b, block in enumerate(has):
        for key in block:
            copies.setdefault(key, []).append(b)
    return {holders[0] for holders in copies.values() if len(holders) == 1}


def _incidence(sets: Sequence[frozenset[UnitKey]], index: Mapping[UnitKey, int]) -> FloatArray:
    table = np.zeros((len(sets), len(index)))
    for row, keys in enumerate(sets):
        for key in keys:
            if key in index:
                table[row, index[key]] = 1.0
    return table


def _inside(
    block: tuple[Seat, ...],
    holdings: Mapping[Seat, Collection[HeldUnit]],
    tensor: int,
    iteration: int | None,
) -> list[Seat]:
    """The block's seats in tensor order: whoever holds slice k is tensor rank k."""
    ordered: list[Seat] = []
    for first in range(0, len(block), tensor):
        seats = list(block[first : first + tensor])
        slots: list[Seat | None] = [None] * tensor
        for seat in seats:
            held = [h for h in holdings.get(seat, ()) if h.tensor == tensor and h.iteration == iteration]
            if held and slots[held[0].tensor_index] is None:
                slots[held[0].tensor_index] = seat
        rest = [seat for seat in seats if seat not in slots]
        ordered.extend(seat if seat is not None else rest.pop(0) for seat in slots)
    return ordered

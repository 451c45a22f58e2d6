"""Layouts are placed where the state is, and what has to move comes from the nearest holder."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.brute import build
from tests.planner.works import nodes, small_work
from unicron_hpc.planner.holdings import HeldUnit, held_by
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.movement import moves, replace_seats
from unicron_hpc.planner.placement import place
from unicron_hpc.planner.search import best_layout
from unicron_hpc.planner.transition import next_layout
from unicron_hpc.planner.units import all_units, layer_unit, units_of
from unicron_hpc.planner.work import NodeSlots

KINDS = {"tied": True, "learned_positions": True}
SIZES = {unit: 10 + 7 * k for k, unit in enumerate(all_units(6, **KINDS))}


def holdings(layout: Layout, lost: set[str] = frozenset(), iteration: int = 5):
    held = held_by(layout, SIZES, **KINDS, iteration=iteration)
    return {seat: units for seat, units in held.items() if seat.node not in lost}


def needed_bytes(layout: Layout, held) -> int:
    """Bytes that ranks lack, counted without the code under test."""
    total = 0
    for position in layout.positions():
        has = {(h.unit, h.tensor_index) for h in held.get(layout.seats[position.rank], ())}
        for unit in units_of(position, **KINDS):
            if (unit, position.tensor_index) not in has:
                total += SIZES[unit]
    return total


work = small_work(num_layers=6, global_batch_size=16)
pipes = st.lists(st.sampled_from([(6,), (3, 3), (2, 4), (1, 2, 3), (2, 2, 2)]), min_size=1, max_size=2)


@settings(max_examples=60, deadline=None)
@given(pipes, pipes, st.data())
def test_no_placement_moves_less(before, after, data):
    old_groups, new_groups = sum(map(len, before)), sum(map(len, after))
    mine = nodes(max(old_groups, new_groups))
    old = build(work, before, [8 // len(before)] * len(before), mine)
    new = build(work, after, [8 // len(after)] * len(after), mine)
    held = holdings(old, set(data.draw(st.lists(st.sampled_from([n.name for n in mine]), max_size=1))))
    placed = place(new, old, mine, held)
    counted: dict[str, int] = {}
    for units in held.values():
        for h in units:
            counted[h.unit] = counted.get(h.unit, 0) + 1
    sole = {seat for seat, units in held.items() if any(counted[h.unit] == 1 for h in units)}

    def rating(seats):
        # Seating those that alone hold something comes first, then the bytes.
        return -len(sole & set(seats)), needed_bytes(new.with_seats(tuple(seats)), held)

    every = permutations([Seat(n.name, 0) for n in mine], new_groups)
    assert rating(placed.seats) == min(rating(seats) for seats in every)


def test_ranks_that_need_nothing_new_keep_their_seats():
    old = build(work, [(3, 3), (3, 3)], [4, 4], nodes(4))
    new = build(work, [(3, 3)], [8], nodes(4)[2:])
    placed = place(new, old, nodes(4), holdings(old, {"c1"}))
    assert moves(placed, holdings(old, {"c1"}), **KINDS).moves == ()


def test_a_spare_takes_the_lost_nodes_seats_and_its_peer_sends_everything():
    old = build(work, [(3, 3), (3, 3)], [4, 4], nodes(4))
    new = replace_seats(old, {"c1"}, [NodeSlots("spare", 1)])
    assert new is not None
    assert new.seats == (Seat("c0", 0), Seat("spare", 0), Seat("c2", 0), Seat("c3", 0))
    plan = moves(new, holdings(old, {"c1"}), **KINDS)
    assert plan.missing == ()
    assert plan.iteration == 5
    assert {m.unit for m in plan.moves} == {"word_embedding", "layer.3", "layer.4", "layer.5", "final_norm"}
    assert {m.target for m in plan.moves} == {1}
    assert {m.source for m in plan.moves if m.unit.startswith("layer")} == {3}


def test_spares_that_do_not_suffice_are_no_replacement():
    old = build(work, [(3, 3), (3, 3)], [4, 4], nodes(4))
    assert replace_seats(old, {"c1", "c2"}, [NodeSlots("spare", 1)]) is None
    wide = build(work, [(3, 3)], [8], nodes(1, slots=2))
    assert replace_seats(wide, {"c0"}, [NodeSlots("small", 1), NodeSlots("large", 2)]) == wide.with_seats(
        (Seat("large", 0), Seat("large", 1))
    )


def test_a_source_on_the_same_node_is_taken_before_one_across_the_network():
    old = build(work, [(6,), (6,)], [4, 4], [NodeSlots("a", 2), NodeSlots("b", 2)])
    held = holdings(old)
    new = build(work, [(6,), (6,), (6,), (6,)], [2] * 4, [NodeSlots("a", 2), NodeSlots("b", 2)])
    held = {Seat("a", 0): held[Seat("a", 0)], Seat("b", 0): held[Seat("a", 0)]}
    for move in moves(new, held, **KINDS).moves:
        assert new.seats[move.source].node == new.seats[move.target].node


def test_the_load_is_spread_over_equally_near_sources():
    mine = nodes(4)
    old = build(work, [(6,), (6,)], [4, 4], mine)
    new = build(work, [(6,)] * 4, [2] * 4, mine)
    sent = {0: 0, 1: 0}
    for move in moves(new, holdings(old), **KINDS).moves:
        sent[move.source] += move.bytes
    assert abs(sent[0] - sent[1]) <= max(SIZES.values())


def test_what_nobody_holds_at_the_newest_iteration_is_missing():
    old = build(work, [(3, 3)], [8], nodes(2))
    held = holdings(old, {"c1"})
    old_state = {Seat("c1", 0): (HeldUnit(layer_unit(3), 0, 1, 4, 99),)}
    plan = moves(old, held | old_state, **KINDS)
    assert {unit for unit, _ in plan.missing} == {"layer.3", "layer.4", "layer.5", "final_norm"}
    assert plan.iteration == 5


def test_a_survivor_without_a_seat_is_no_source():
    old = build(work, [(3, 3)], [8], nodes(2))
    new = build(work, [(6,)], [8], nodes(1))
    assert {unit for unit, _ in moves(new, holdings(old), **KINDS).missing} == {
        "layer.3",
        "layer.4",
        "layer.5",
        "final_norm",
    }


def test_the_next_layout_keeps_every_node_that_alone_holds_something():
    # Two replicas of two stages lost one of each stage's copies: both survivors are needed as sources.
    old = build(work, [(3, 3), (3, 3)], [4, 4], nodes(4))
    held = holdings(old, {"c1", "c2"})
    then = next_layout(work, [n for n in nodes(4) if n.name in {"c0", "c3"}], previous=old, holdings=held)
    assert then.moves.missing == ()
    assert {seat.node for seat in then.layout.seats} == {"c0", "c3"}


def test_slices_of_a_tensor_group_stay_with_the_rank_that_holds_them():
    tensor = small_work(num_layers=6, global_batch_size=16, tensor=2)
    mine = nodes(3, slots=2)
    old = best_layout(tensor, mine)
    held = held_by(old, SIZES, **KINDS)
    flipped = {Seat(s.node, 1 - s.slot): units for s, units in held.items()}
    placed = place(old, None, mine, flipped)
    assert moves(placed, flipped, **KINDS).moves == ()


@pytest.mark.parametrize("slots", [1, 2])
def test_hundreds_of_nodes_are_placed_without_moving_what_can_stay(slots):
    mine = nodes(300, slots=slots)
    old = build(work, [(2, 2, 2)] * 100, [1] * 100, mine)
    lost = {"c17", "c170"}
    survivors = [n for n in mine if n.name not in lost]
    new = build(work, [(2, 2, 2)] * 99, [1] * 99, survivors)
    held = {seat: units for seat, units in held_by(old, SIZES, **KINDS).items() if seat.node not in lost}
    placed = place(new, old, survivors, held)
    assert sum(m.bytes for m in moves(placed, held, **KINDS).moves) <= sum(SIZES.values())

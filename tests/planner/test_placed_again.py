"""Choices of the next layout that are easily missed: sole holders, and ties."""

from __future__ import annotations

from msgspec.structs import replace

from tests.planner.brute import build
from tests.planner.works import MACHINE, nodes, small_work
from unicron_hpc.planner.holdings import held_by
from unicron_hpc.planner.movement import moves
from unicron_hpc.planner.placement import place
from unicron_hpc.planner.search import search
from unicron_hpc.planner.sizes import unit_bytes
from unicron_hpc.planner.transition import next_layout

KINDS = {"tied": True, "learned_positions": True}


def held(work, layout, lost=()):
    everything = held_by(layout, unit_bytes(work, layout.tensor), **KINDS)
    return {seat: units for seat, units in everything.items() if seat.node not in lost}


def test_a_perfect_match_does_not_unseat_the_only_holder_of_a_layer():
    work = small_work(num_layers=6, global_batch_size=16)
    mine = nodes(4)
    old = build(work, [(2, 4), (3, 3)], [4, 4], mine)
    new = build(work, [(3, 3)], [8], mine)
    held_now = held(work, old, {"c2"})
    placed = place(new, old, mine, held_now)
    assert moves(placed, held_now, **KINDS).missing == ()
    assert "c0" in {seat.node for seat in placed.seats}  # alone holds layer 0


def test_a_faster_layout_that_unseats_the_only_holder_loses():
    # The network is so slow that one node alone would be fastest, but the other holds half of the model.
    work = small_work(
        num_layers=6, global_batch_size=16, hardware=replace(MACHINE, inter_bandwidth=1e6, inter_latency=1e-3)
    )
    two = nodes(2)
    old = build(work, [(3, 3)], [8], two)
    assert len(search(work, two, previous=old).candidate.shares[0]) == 1
    assert search(work, two, previous=old).idle_nodes == ("c1",)
    then = next_layout(work, two, previous=old, holdings=held(work, old))
    assert {seat.node for seat in then.layout.seats} == {"c0", "c1"}
    assert then.moves.missing == ()

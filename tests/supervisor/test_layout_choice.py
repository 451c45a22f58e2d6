"""From the nodes that are left to the layout that runs on them next."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.works import MACHINE, nodes, small_work
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.cost import predict
from unicron_hpc.planner.holdings import HeldUnit, held_by
from unicron_hpc.planner.layout import Layout, Seat
from unicron_hpc.planner.movement import moves
from unicron_hpc.planner.search import search
from unicron_hpc.planner.units import units_of
from unicron_hpc.planner.work import NodeSlots
from unicron_hpc.supervisor.layout_choice import choose_layout

WORK = small_work(pipeline=2)
FOUR = nodes(4)
ALL = {node.name for node in FOUR}
SPARE = NodeSlots("s0", 1)


def start() -> Layout:
    return choose_layout(WORK, None, FOUR, ALL, {}).layout


def state_of(layout: Layout, *lost: str) -> dict[Seat, tuple[HeldUnit, ...]]:
    """What the survivors of a running layout hold."""
    names = {u for p in layout.positions() for u in units_of(p, tied=WORK.tied, learned_positions=True)}
    held = held_by(layout, dict.fromkeys(names, 64), tied=WORK.tied, learned_positions=True, iteration=7)
    return {seat: units for seat, units in held.items() if seat.node not in lost}


def test_a_start_uses_every_node() -> None:
    choice = choose_layout(WORK, None, FOUR, ALL, {})
    assert choice.reason == "start"
    assert {seat.node for seat in choice.layout.seats} == {"c0", "c1", "c2", "c3"}
    assert choice.layout.micro_batches == 4


def test_when_only_processes_are_gone_nothing_moves() -> None:
    layout = start()
    choice = choose_layout(WORK, layout, FOUR, ALL, state_of(layout))
    assert (choice.reason, choice.layout) == ("same seats", layout)


def test_a_spare_takes_a_lost_nodes_place_and_nobody_else_moves() -> None:
    layout = start()
    left = [node for node in FOUR if node.name != "c1"]
    choice = choose_layout(WORK, layout, [*left, SPARE], ALL, state_of(layout, "c1"))
    assert choice.reason == "spare"
    assert choice.layout.replicas == layout.replicas
    assert {Seat("s0" if s.node == "c1" else s.node, s.slot) for s in layout.seats} == set(
        choice.layout.seats
    )


def test_without_a_spare_the_others_share_the_work_and_all_of_it_is_done() -> None:
    layout = start()
    left = [node for node in FOUR if node.name != "c1"]
    choice = choose_layout(WORK, layout, left, ALL, state_of(layout, "c1"))
    assert choice.reason == "redistributed"
    assert {seat.node for seat in choice.layout.seats} <= {"c0", "c2", "c3"}
    assert choice.layout.micro_batches == layout.micro_batches
    held = state_of(layout, "c1")
    plan = moves(choice.layout, held, tied=WORK.tied, learned_positions=True)
    assert plan.missing == ()


def test_spares_that_do_not_suffice_are_used_all_the_same() -> None:
    layout = start()
    left = [node for node in FOUR if node.name not in ("c1", "c2")]
    choice = choose_layout(WORK, layout, [*left, SPARE], ALL, state_of(layout, "c1", "c2"))
    assert choice.reason == "redistributed"
    assert {seat.node for seat in choice.layout.seats} <= {"c0", "c3", "s0"}
    assert choice.layout.micro_batches == layout.micro_batches


def test_with_nothing_left_there_is_no_plan() -> None:
    with pytest.raises(PlanError):
        choose_layout(WORK, start(), [], ALL, {})


def test_a_spare_that_is_far_too_slow_does_not_take_the_place_as_it_is() -> None:
    work = small_work(hardware=replace(MACHINE, flops=1e9), global_batch_size=24)
    layout = choose_layout(work, None, FOUR, ALL, {}).layout
    left = [node for node in FOUR if node.name != "c1"]
    choice = choose_layout(work, layout, [*left, NodeSlots("s0", 1, 20.0)], ALL, state_of(layout, "c1"))
    assert choice.reason == "redistributed"
    assert {seat.node for seat in choice.layout.seats} == {"c0", "c2", "c3"}


def test_a_slightly_slow_spare_takes_the_place_although_sharing_anew_would_be_faster() -> None:
    work = small_work(hardware=replace(MACHINE, flops=1e9), global_batch_size=400)
    layout = choose_layout(work, None, FOUR, ALL, {}).layout
    left = [node for node in FOUR if node.name != "c1"]
    mine = [*left, NodeSlots("s0", 1, 1.04)]
    choice = choose_layout(work, layout, mine, ALL, state_of(layout, "c1"))
    assert choice.reason == "spare"
    slowdown = {node.name: node.slowdown for node in mine}
    best = search(work, mine, previous=layout).candidate.seconds
    assert best < predict(choice.layout, work, slowdown).iteration_seconds


@pytest.mark.parametrize(
    ("factor", "reason"), [(1.0, "same seats"), (1.03, "same seats"), (1.5, "redistributed")]
)
def test_a_node_that_has_become_slow_gets_less_to_do_at_the_next_transition(
    factor: float, reason: str
) -> None:
    work = small_work(hardware=replace(MACHINE, flops=1e9), global_batch_size=400)
    layout = choose_layout(work, None, FOUR, ALL, {}).layout
    mine = [*FOUR[:3], NodeSlots("c3", 1, factor)]
    choice = choose_layout(work, layout, mine, ALL, state_of(layout))
    assert choice.reason == reason
    load = {seat.node: 0 for seat in choice.layout.seats}
    for replica in choice.layout.replicas:
        for stage in replica.stages:
            load[choice.layout.seats[stage.ranks[0]].node] += stage.num_layers * replica.micro_batches
    assert (load["c3"] < load["c0"]) == (reason == "redistributed")


def test_a_depth_that_needs_nodes_that_never_came_gives_way() -> None:
    choice = choose_layout(small_work(pipeline=4), None, nodes(3), {"c0", "c1", "c2"}, {})
    assert all(len(replica.stages) <= 3 for replica in choice.layout.replicas)

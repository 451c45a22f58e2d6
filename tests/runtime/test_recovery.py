"""Faults in the middle of an iteration: survivors keep processes and state, and the losses do not change."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.ranks import World, layout, moves_for, small_task
from unicron_hpc.planner.layout import Seat
from unicron_hpc.runtime.orders import Committed, PendingCommit, Phase

pytestmark = pytest.mark.ranks

RELATIVE = 1e-5
#: How work ends that was cut; the last where gloo forgot a wait.
BROKEN_OFF = ("GroupsCut", "PeerLost", "WorkLeftBehind")
TASK = small_task()
TWO_BY_TWO = layout(TASK, [2, 2], [2, 2])


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> list[Committed]:
    world = World(TASK, tmp_path_factory.mktemp("faultless") / "store")
    try:
        world.start(layout(TASK, [4]))
        return world.run(16)
    finally:
        world.close()


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(TASK, tmp_path / "store")
    made.start(TWO_BY_TWO)
    yield made
    made.close()


def assert_same(found: list[Committed], faultless: list[Committed]) -> None:
    expected = [faultless[c.iteration - 1].loss for c in found]
    assert [c.loss for c in found] == pytest.approx(expected, rel=RELATIVE)


def break_off(world: World, survivors: list[int]) -> None:
    """Cut the survivors loose and wait until each has stopped with an error."""
    for rank in survivors:
        world.ranks[rank].send("cut", world.epoch + 1)
    for rank in survivors:
        assert world.ranks[rank].answer().error in BROKEN_OFF


def test_a_killed_rank_is_replaced_from_its_peer_and_the_losses_do_not_change(
    world: World, faultless: list[Committed]
) -> None:
    world.run(2)
    pids = [process.pid for process in world.ranks]
    world.send("run", 10)
    os.kill(world.ranks[1].pid, signal.SIGKILL)
    break_off(world, [0, 2, 3])
    reports = world.recover(TWO_BY_TWO, [0, None, 2, 3])
    assert [report.chunk_kept for report in reports] == [True, False, True, True]
    assert [report.bytes_by_source["peer"] > 0 for report in reports] == [False, True, False, False]
    assert [process.pid for process in world.ranks if process.pid in pids] == [pids[0], pids[2], pids[3]]
    assert_same(world.run(3), faultless)


def test_a_stopped_rank_does_not_hold_the_others(world: World, faultless: list[Committed]) -> None:
    world.run(1)
    os.kill(world.ranks[2].pid, signal.SIGSTOP)
    world.send("run", 10)
    break_off(world, [0, 1, 3])
    stopped = world.ranks[2]
    world.recover(TWO_BY_TWO, [0, 1, None, 3])
    stopped.end()
    assert_same(world.run(2), faultless)


@pytest.mark.parametrize(
    ("pipelines", "shares", "survivors"),
    [
        pytest.param([[1, 2, 1]], None, [0, 1, 3], id="one pipeline of three uneven stages"),
        pytest.param([[1, 3], [4]], [6, 2], [3, 0, 1], id="two replicas of different depth"),
    ],
)
def test_without_a_replacement_the_layers_are_spread_over_the_survivors(
    world: World,
    faultless: list[Committed],
    pipelines: list[list[int]],
    shares: list[int] | None,
    survivors: list[int | None],
) -> None:
    world.run(3)
    world.send("run", 10)
    world.ranks[2].signal(signal.SIGKILL)
    break_off(world, [0, 1, 3])
    world.recover(layout(TASK, *pipelines, shares=shares), survivors)
    assert_same(world.run(3), faultless)


def test_a_rank_that_leaves_hands_over_what_it_alone_holds(
    tmp_path: Path, faultless: list[Committed]
) -> None:
    """No replica: half the layers are on the rank that goes, and its departure does not disturb the rest."""
    world = World(TASK, tmp_path / "store")
    world.start(layout(TASK, [1, 2, 1]))
    world.run(2)
    held = [process.ask("holdings") for process in world.ranks]
    smaller = layout(TASK, [2, 2])
    moves = moves_for(TASK, smaller, held, 2)  # sources are numbered as before: the sender is rank 2
    assert any(move.source == 2 for move in moves)
    leaving = world.ranks[2]
    reports = world.rebuild(smaller, 2, moves=moves, senders=(Seat("here", 2),))
    assert reports[2].bytes_by_source == {}
    world.ranks.pop()
    leaving.end()
    assert_same(world.run(3), faultless)
    world.close()


def test_cuts_at_any_moment_of_iterations_and_rebuilds_leave_one_training(
    world: World, faultless: list[Committed]
) -> None:
    """All or nothing: whatever is cut when, ranks agree on what is committed and no iteration changes."""
    chance = random.Random(7)
    committed = 0
    for _ in range(12):
        world.send("run", 2)
        time.sleep(chance.uniform(0.0, 0.12))
        for process in world.ranks:
            process.send("cut", world.epoch + 1)
        for process in world.ranks:
            answer = process.answer()
            if not answer.error:
                assert_same(answer.value, faultless)
        held = [process.ask("holdings") for process in world.ranks]
        assert max(h.iteration for h in held) - min(h.iteration for h in held) <= 1
        committed = max(h.iteration for h in held)
        if committed >= 13:
            break
        behind = [h for h in held if h.iteration < committed]
        assert all(h.phase is Phase.REDUCED and h.pending_iteration == committed for h in behind)
        done = next(h for h in held if h.iteration == committed)
        order: dict[str, Any] = {"commit": PendingCommit.of(done.recent[-1])} if behind else {}
        # Now and then the new epoch is cut as well while it is being built.
        if chance.random() < 0.6:
            world.send_rebuild(TWO_BY_TWO, committed, **order)
            time.sleep(chance.uniform(0.0, 0.04))
            for process in world.ranks:
                process.send("cut", world.epoch + 1)
            for process in world.ranks:
                assert process.answer().error in ("", *BROKEN_OFF)
            held = [process.ask("holdings") for process in world.ranks]
            for h in held:
                assert {unit.iteration for unit in h.units} == {h.iteration}
        world.rebuild(TWO_BY_TWO, committed, **order)
    final = world.run(1)
    assert final[0].iteration == committed + 1
    assert_same(final, faultless)


def test_a_fault_while_state_moves_leaves_only_whole_units(world: World, faultless: list[Committed]) -> None:
    """All are cut before the state is complete; the next order finds the truth."""
    world.run(2)
    smaller = layout(TASK, [1, 3], [4], shares=[6, 2])
    world.ranks.pop().end()
    held = [process.ask("holdings") for process in world.ranks]
    moves = moves_for(TASK, smaller, list(held), 2)
    world.send_rebuild(smaller, 2, moves=moves)
    time.sleep(0.03)
    for process in world.ranks:
        process.send("cut", world.epoch + 1)
    for process in world.ranks:
        assert process.answer().error in ("", *BROKEN_OFF)
    held = [process.ask("holdings") for process in world.ranks]
    assert {unit.iteration for h in held for unit in h.units} == {2}
    world.rebuild(smaller, 2, moves=moves_for(TASK, smaller, list(held), 2))
    assert_same(world.run(2), faultless)


def test_an_update_that_one_rank_has_applied_is_applied_by_all(
    world: World, faultless: list[Committed]
) -> None:
    """Every rank but one is stopped short of the commit's answer; the one that has it decides."""
    world.run(2)
    world.send("stall_commit", 0)
    for process in world.ranks:
        process.answer()
    world.send("run", 1)
    answers = [process.answer() for process in world.ranks]
    assert [a.error for a in answers] == ["", "Stalled", "Stalled", "Stalled"]
    held = [process.ask("holdings") for process in world.ranks]
    assert [h.iteration for h in held] == [3, 2, 2, 2]
    assert {h.phase for h in held[1:]} == {Phase.REDUCED}
    reports = world.recover(TWO_BY_TWO, [0, 1, 2, 3])
    assert [r.committed.iteration if r.committed else None for r in reports] == [None, 3, 3, 3]
    assert_same(world.run(2), faultless)


def test_damaged_state_is_refused(world: World) -> None:
    world.run(1)
    world.ranks[3].ask("damage")
    world.ranks[1].signal(signal.SIGKILL)
    survivors = [world.ranks[r] for r in (0, 2, 3)]
    for process in survivors:
        process.send("cut", world.epoch + 1)
    held = [process.ask("holdings") for process in survivors]
    world.ranks[1] = world.fresh()
    moves = moves_for(TASK, TWO_BY_TWO, [held[0], None, held[1], held[2]], 1)
    assert 3 in {move.source for move in moves}
    world.send_rebuild(TWO_BY_TWO, 1, moves=moves)
    refused = world.ranks[1].answer()
    assert refused.error == "StateMismatch"
    assert "damaged" in refused.text
    left = world.ranks[1].ask("holdings")
    assert "layer.2" not in {unit.unit for unit in left.units}


def test_state_of_another_iteration_is_refused(world: World) -> None:
    world.run(1)
    for process in world.ranks:
        process.send("cut", world.epoch + 1)
    answers = world.try_rebuild(TWO_BY_TWO, 5)
    assert all(a.error for a in answers)
    refusals = [a.text for a in answers if a.error == "StateMismatch"]
    assert "is needed at iteration 5, but this rank holds slice 0 of 1 at iteration 1" in refusals[0]


def test_a_wait_that_the_cut_does_not_end_is_left_behind(world: World, faultless: list[Committed]) -> None:
    """Gloo forgets messages that were half sent when a connection broke; here rank 0 cuts nothing at all."""
    world.run(1)
    world.ranks[0].ask("deafen")
    stopped = world.ranks[2]
    stopped.signal(signal.SIGSTOP)
    world.ranks[0].send("run", 10)
    world.ranks[0].send("cut_when_waiting", world.epoch + 1)
    assert world.ranks[0].answer().error == "WorkLeftBehind"
    reports = world.recover(TWO_BY_TWO, [0, 1, None, 3])
    assert [report.chunk_kept for report in reports] == [False, True, False, True]
    assert_same(world.run(2), faultless)
    stopped.end()  # now the thread that was left behind gets its error
    assert_same(world.run(2), faultless)

"""An iteration that broke off goes on: what is there is not computed again, and gradients are the same."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.ranks import World, layout, small_task
from unicron_hpc.planner.layout import Layout
from unicron_hpc.runtime.orders import Committed

pytestmark = pytest.mark.ranks

TASK = small_task()
TWO_BY_TWO = layout(TASK, [2, 2], [2, 2])
#: Of the whole global batch.
MICRO_BATCHES = 8
#: The iteration that breaks off.
BROKEN = 3
#: Other orders of adding change the last digits; a micro-batch that is added twice, or not, some percents.
RELATIVE = 1e-5
#: Bytes of a segment that no unit fits into: each is summed by itself.
EACH_UNIT = 1


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> list[Committed]:
    world = World(TASK, tmp_path_factory.mktemp("faultless") / "store")
    try:
        world.start(layout(TASK, [4]))
        return world.run(BROKEN + 1)
    finally:
        world.close()


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(TASK, tmp_path / "store")
    yield made
    made.close()


def trained(world: World, plan: Layout = TWO_BY_TWO) -> World:
    world.start(plan)
    world.run(BROKEN - 1)
    return world


def break_off(world: World, first: list[int], summing: Collection[int] = (0, 1)) -> None:
    """Start the iteration; once those in `first` have failed, and those in `summing` are done, cut all."""
    world.send("run", 1)
    for rank in first:
        assert world.ranks[rank].answer().error == "Stalled"
    for number, rank in enumerate(world.ranks):
        if number not in first:
            rank.send(f"cut_when_{'summing' if number in summing else 'waiting'}", world.epoch + 1)
    for number, rank in enumerate(world.ranks):
        if number not in first:
            assert rank.answer().error in ("GroupsCut", "PeerLost", "WorkLeftBehind")


def replace_first_of_second_replica(world: World) -> None:
    """Rank 2 fails at micro-batch 6, the others being done with theirs; a fresh process takes its place."""
    trained(world)
    world.ranks[2].ask("fail_at", BROKEN, 6)
    break_off(world, [2])
    world.ranks[2].end()
    world.recover(TWO_BY_TWO, [0, 1, None, 3])


def assert_goes_on(world: World, faultless: list[Committed]) -> None:
    """The broken iteration and one more have the losses and gradients of a run without faults."""
    for found, expected in zip(world.run(2), faultless[BROKEN - 1 :], strict=True):
        assert found.iteration == expected.iteration
        assert found.loss == pytest.approx(expected.loss, rel=RELATIVE)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=RELATIVE)
        assert found.tokens == expected.tokens


def read_of_broken(world: World, rank: int) -> list[int]:
    """Micro-batches of the broken iteration that a process has read since it was started."""
    return [index for iteration, index in world.ranks[rank].ask("read") if iteration == BROKEN]


def test_only_the_share_of_a_lost_replica_is_computed_again(world: World, faultless: list[Committed]) -> None:
    replace_first_of_second_replica(world)
    assert world.reuse is not None
    assert sorted(index for share in world.reuse.run for index in share) == [4, 5, 6, 7]
    assert_goes_on(world, faultless)
    # Each replica has taken half of it.
    assert read_of_broken(world, 0) == [0, 1, 2, 3, 4, 6]
    assert read_of_broken(world, 2) == [5, 7]


def test_without_a_replacement_the_survivors_take_the_share(world: World, faultless: list[Committed]) -> None:
    trained(world)
    world.ranks[2].ask("fail_at", BROKEN, 6)
    break_off(world, [2])
    for lost in (2, 3):
        world.ranks[lost].end()
    world.recover(layout(TASK, [2, 2]), [0, 1])
    assert_goes_on(world, faultless)
    assert read_of_broken(world, 0) == list(range(MICRO_BATCHES))


def test_where_all_survive_only_what_was_in_flight_is_computed_again(
    world: World, faultless: list[Committed]
) -> None:
    trained(world)
    world.ranks[2].ask("fail_at", BROKEN, 7)  # 4 and 5 have been through both stages
    break_off(world, [2])
    world.recover(TWO_BY_TWO, [0, 1, 2, 3])
    assert world.reuse is not None
    assert set().union(*world.reuse.run) <= {5, 6, 7}
    assert 7 in set().union(*world.reuse.run)
    assert_goes_on(world, faultless)


def test_a_second_fault_in_the_same_iteration_loses_nothing_of_what_was_kept(
    world: World, faultless: list[Committed]
) -> None:
    replace_first_of_second_replica(world)
    world.ranks[2].ask("fail_at", BROKEN, 7)
    break_off(world, [2])
    world.recover(TWO_BY_TWO, [0, 1, 2, 3])
    assert world.reuse is not None
    assert set().union(*world.reuse.run) <= {5, 7}
    assert_goes_on(world, faultless)
    assert read_of_broken(world, 0)[:6] == [0, 1, 2, 3, 4, 6]


def test_a_cut_before_the_first_micro_batch_leaves_what_was_taken_over(
    world: World, faultless: list[Committed]
) -> None:
    replace_first_of_second_replica(world)
    before = world.reuse
    world.recover(TWO_BY_TWO, [0, 1, 2, 3])
    assert before is not None
    assert world.reuse is not None
    assert world.reuse.run == before.run
    assert_goes_on(world, faultless)
    assert read_of_broken(world, 0) == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_fault_while_gradients_are_summed_leaves_each_unit_summed_or_as_it_was(
    world: World, faultless: list[Committed], after: int
) -> None:
    """No gradient is lost where all survive, and nothing runs again."""
    world.segment = EACH_UNIT
    trained(world)
    world.ranks[0].ask("stall_sums", after)
    break_off(world, [0], summing=[1, 2, 3])
    world.recover(TWO_BY_TWO, [0, 1, 2, 3])
    assert world.reuse is not None
    assert world.reuse.redone == 0
    assert_goes_on(world, faultless)


def test_a_rank_lost_while_gradients_are_summed_costs_its_replicas_share(
    world: World, faultless: list[Committed]
) -> None:
    world.segment = EACH_UNIT
    trained(world)
    world.ranks[0].ask("stall_sums", 1)
    break_off(world, [0], summing=[1, 2, 3])
    world.ranks[2].end()
    world.recover(TWO_BY_TWO, [0, 1, None, 3])
    assert world.reuse is not None
    assert sorted(index for share in world.reuse.run for index in share) == [4, 5, 6, 7]
    assert_goes_on(world, faultless)


@pytest.mark.parametrize("changes", [{"untie_embeddings_and_output_weights": True}, {"hidden_dropout": 0.1}])
def test_models_of_other_kinds_go_on_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    task = small_task(**changes)
    plain = World(task, tmp_path / "plain")
    plain.start(layout(task, [4]))
    expected = plain.run(BROKEN + 1)
    plain.close()
    world = trained(World(task, tmp_path / "store"), layout(task, [2, 2], [2, 2]))
    world.ranks[2].ask("fail_at", BROKEN, 6)
    break_off(world, [2])
    world.ranks[2].end()
    world.recover(layout(task, [1, 3], [4], shares=[5, 3]), [0, 1, 3])
    assert_goes_on(world, expected)
    world.close()


def test_tensor_parallel_stages_keep_what_they_have(tmp_path: Path) -> None:
    task = small_task()
    plain = World(task, tmp_path / "plain")
    plan = layout(task, [4], [4], tensor=2)
    plain.start(plan)
    expected = plain.run(BROKEN + 1)
    plain.close()
    world = trained(World(task, tmp_path / "store"), plan)
    for rank in (2, 3):
        world.ranks[rank].ask("fail_at", BROKEN, 6)
    break_off(world, [2, 3])
    world.ranks[2].end()
    world.recover(plan, [0, 1, None, 3])
    assert world.reuse is not None
    assert sorted(index for share in world.reuse.run for index in share) == [4, 5, 6, 7]
    assert_goes_on(world, expected)
    world.close()

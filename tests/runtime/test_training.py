"""The same training in every layout: losses equal those of one process, and of a plain Megatron loop."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.runtime.ranks import Numbers, World, layout, small_task
from unicron_hpc.runtime.orders import Committed

pytestmark = pytest.mark.ranks

ITERATIONS = 8
RELATIVE = 1e-5


def train(task: Any, folder: Path, plan: Any, data: Any = None) -> list[Committed]:
    world = World(task, folder / "store", data)
    try:
        world.start(plan)
        return world.run(ITERATIONS)
    finally:
        world.close()


def assert_same(found: list[Committed], expected: list[Committed]) -> None:
    assert [c.iteration for c in found] == [c.iteration for c in expected]
    assert [c.tokens for c in found] == [c.tokens for c in expected]
    assert [c.loss for c in found] == pytest.approx([c.loss for c in expected], rel=RELATIVE)
    assert [c.grad_norm for c in found] == pytest.approx([c.grad_norm for c in expected], rel=1e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Committed]:
    """One process, dropout on, masks that leave out tokens."""
    task = small_task()
    return train(task, tmp_path_factory.mktemp("alone"), layout(task, [4]), Numbers(task, masked=True))


@pytest.mark.parametrize(
    ("pipelines", "shares"),
    [
        pytest.param([[2, 2], [2, 2]], None, id="two pipelines of two stages"),
        pytest.param([[1, 1, 2]], None, id="three uneven stages"),
        pytest.param([[3, 1], [4]], [6, 2], id="replicas of different depth, shares three to one"),
    ],
)
def test_a_layout_trains_like_one_process_with_dropout_and_masked_tokens(
    alone: list[Committed], tmp_path: Path, pipelines: list[list[int]], shares: list[int] | None
) -> None:
    task = small_task()
    plan = layout(task, *pipelines, shares=shares)
    assert_same(train(task, tmp_path, plan, Numbers(task, masked=True)), alone)


def test_the_loss_falls(alone: list[Committed]) -> None:
    assert alone[-1].loss < 0.9 * alone[0].loss


def test_dropout_changes_the_training(alone: list[Committed], tmp_path: Path) -> None:
    task = small_task(hidden_dropout=0.0, attention_dropout=0.0)
    plain = train(task, tmp_path, layout(task, [4]), Numbers(task, masked=True))
    assert [c.loss for c in plain] != pytest.approx([c.loss for c in alone], rel=1e-3)


def test_tensor_parallel_slices_train_like_whole_layers(tmp_path: Path) -> None:
    """With SwiGLU, grouped queries, rotary positions, RMSNorm and untied embeddings as well."""
    task = small_task(
        hidden_dropout=0.0,
        attention_dropout=0.0,
        swiglu=True,
        num_query_groups=2,
        position_embedding_type="rope",
        normalization="RMSNorm",
        untie_embeddings_and_output_weights=True,
        add_bias_linear=False,
    )
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    whole = train(task, tmp_path / "1", layout(task, [4]))
    assert_same(train(task, tmp_path / "2", layout(task, [2, 2], tensor=2)), whole)


def test_tensor_ranks_drop_the_same_hidden_values(tmp_path: Path) -> None:
    """Were their masks different, the ranks of a tensor group would compute different models and diverge."""
    task = small_task()
    world = World(task, tmp_path / "store")
    try:
        world.start(layout(task, [4], tensor=2))
        world.run(3)
        norms = [process.ask("weights")["final_norm", index] for index, process in enumerate(world.ranks)]
        assert norms[0] == norms[1]
    finally:
        world.close()


def plain_losses(task: Any, folder: Path) -> list[float]:
    """Four processes of `bench/plain_loop.py` with two stages; the last stage's losses."""
    path = Path(__file__).parents[2] / "bench" / "plain_loop.py"
    spec = importlib.util.spec_from_file_location("plain_loop", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = folder / "losses"
    children = []
    for rank in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                store = dist.FileStore(str(folder / "plain"), 4)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
                loop = module.PlainLoop(task, Numbers(task), 1, 2)
                losses = [loop.iterate()[1] for _ in range(ITERATIONS)]
                if rank == 3:
                    result.write_text(" ".join(map(repr, losses)))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    return [float(word) for word in result.read_text().split()]


def test_losses_equal_those_of_a_plain_megatron_loop(tmp_path: Path) -> None:
    task = small_task(hidden_dropout=0.0, attention_dropout=0.0)
    ours = train(task, tmp_path, layout(task, [2, 2], [2, 2]))
    assert [c.loss for c in ours] == pytest.approx(plain_losses(task, tmp_path), rel=RELATIVE)


def test_one_rank_that_is_asked_to_save_has_all_save_after_the_same_iteration(tmp_path: Path) -> None:
    task = small_task()
    world = World(task, tmp_path / "store")
    try:
        world.start(layout(task, [2, 2]))
        world.run(1)
        world.ranks[1].ask("ask_to_save")
        world.run(2)
        assert [rank.ask("saves_after") for rank in world.ranks] == [2, 2]
    finally:
        world.close()

"""What is left open in train.yaml is chosen once, by the plan that the job starts with."""

from __future__ import annotations

import pytest

from tests.config.settings_text import VALID, load_text
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.from_settings import node_slots, task_work
from unicron_hpc.planner.hardware import hardware
from unicron_hpc.planner.outlook import at_start
from unicron_hpc.planner.submission import choose

OPEN = VALID.replace("  micro_batch_size: 2\n", "").replace("  pipeline_model_parallel_size: 2\n", "")


def test_what_is_chosen_is_the_layout_of_the_start():
    settings = load_text(OPEN.replace("nodes: 4", "nodes: 4\n  ranks_per_node: 2"))
    found = choose(settings)
    train = found.settings.train
    nodes = node_slots(["c1", "c2", "c3", "c4"], settings.slurm)
    free, fixed = (
        at_start([task_work(s.tasks[0], s.slurm)], nodes)["tiny"].layout for s in (settings, found.settings)
    )
    assert (train.tensor_model_parallel_size, train.micro_batch_size) == (free.tensor, free.micro_batch_size)
    assert fixed == free
    assert len(found.lines) == 1


def test_what_is_given_stays_and_is_not_told():
    settings = load_text(VALID.replace("lr: 1e-3", "lr: 1e-3\n  tensor_model_parallel_size: 1"))
    found = choose(settings)
    assert found.settings == settings
    assert (found.lines, found.notes) == ((), ())


def test_each_of_several_tasks_gets_sizes_for_its_own_share():
    tail = "tasks: [{name: a, weight: 3}, {name: b, train: {micro_batch_size: 1}}]\n"
    found = choose(load_text(OPEN + tail))
    a, b = found.settings.tasks
    assert a.train.micro_batch_size is not None
    assert b.train.micro_batch_size == 1
    assert [line.split()[1] for line in found.lines] == ["a", "b"]


@pytest.mark.parametrize(("saved", "kept"), [(8, True), (3, False)])
def test_the_size_of_a_checkpoint_is_kept_where_it_divides_the_batch(saved, kept):
    settings = load_text(OPEN)
    size = choose(settings, {"tiny": saved}).settings.train.micro_batch_size
    assert size == (saved if kept else choose(settings).settings.train.micro_batch_size)
    assert choose(load_text(VALID), {"tiny": saved}).settings.train.micro_batch_size == 2


def test_nodes_that_no_layout_can_use_are_told():
    # One micro-batch, and a second stage would only cost.
    text = VALID.replace("global_batch_size: 16", "global_batch_size: 2").replace("nodes: 4", "nodes: 3")
    text = text.replace("  pipeline_model_parallel_size: 2\n", "")
    (note,) = choose(load_text(text)).notes
    assert "leaves 2 of its 3 nodes idle" in note


def test_a_depth_that_gives_way_is_told():
    notes = choose(load_text(VALID.replace("nodes: 4", "nodes: 3"))).notes
    assert any("with pipeline_model_parallel_size 2 some of its 3 ranks would be idle" in n for n in notes)


def test_a_model_too_large_for_the_machine_is_refused():
    settings = load_text(OPEN.replace("hidden_size: 64", "hidden_size: 200000"))
    with pytest.raises(PlanError, match="memory"):
        choose(settings, machine=hardware("v100-32gb"))

"""`unicron plan` says what would run, without torch and without Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from unicron_hpc.cli.plan import command

FILE = """\
slurm: {nodes: 4, spares: 1}
model: {num_layers: 6, hidden_size: 64, num_attention_heads: 4, seq_length: 64}
train:
  {micro_batch_size: 2, global_batch_size: 16, train_iters: 10, lr: 1e-3, pipeline_model_parallel_size: 2}
data: {text: corpus.txt}
"""
TWO = """\
slurm: {nodes: 6}
model: {num_layers: 6, hidden_size: 64, num_attention_heads: 4, seq_length: 64}
train: {micro_batch_size: 2, global_batch_size: 16, train_iters: 10, lr: 1e-3}
data: {text: corpus.txt}
tasks:
  - {name: heavy, weight: 5, min_nodes: 2}
  - {name: light, weight: 0.5, min_nodes: 1}
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "corpus.txt").write_text("some text\n")
    (tmp_path / "two.yaml").write_text(TWO)
    path = tmp_path / "train.yaml"
    path.write_text(FILE)
    return path


def run(*words):
    result = CliRunner().invoke(command, [str(word) for word in words])
    return result


def as_json(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def check_whole(plan, layers=6, micro_batches=8):
    for replica in plan["layout"]["replicas"]:
        held = [stage["layers"] for stage in replica["stages"]]
        assert held[0][0] == 0
        assert held[-1][1] == layers - 1
        assert all(right[0] == left[1] + 1 for left, right in pairwise(held))
    assert sum(plan["micro_batches"]) == micro_batches
    assert plan["memory_bytes"] <= plan["memory_limit"]


def test_the_first_layout_is_the_one_that_the_file_fixes(file):
    plan = as_json(file)
    assert (plan["tensor"], plan["pipeline"], plan["data"]) == (1, 2, 2)
    assert plan["micro_batches"] == [4, 4]
    assert plan["idle_nodes"] == []
    check_whole(plan)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 14])
def test_any_number_of_nodes_gets_a_whole_layout(file, nodes):
    plan = as_json(file, "--nodes", nodes)
    check_whole(plan)
    used = {n for r in plan["layout"]["replicas"] for s in r["stages"] for n in s["nodes"]}
    assert sorted([*used, *plan["idle_nodes"]]) == sorted(plan["nodes"])
    assert len(plan["nodes"]) == nodes
    assert all(other["iteration_seconds"] >= plan["iteration_seconds"] for other in plan["runners_up"])


def test_a_lost_node_is_replaced_by_the_spare(file):
    plan = as_json(file, "--lose", "c2")
    assert plan["iteration_seconds"] == plan["before"]["iteration_seconds"]
    assert {move["to_node"] for move in plan["moves"]} == {"c5"}
    assert plan["missing"] == []


def test_without_enough_spares_the_rest_shares_the_work(file):
    plan = as_json(file, "--lose", "c[2-3]")
    check_whole(plan)
    assert plan["lost"] == ["c2", "c3"]
    assert not {"c2", "c3"} & set(plan["nodes"])
    assert plan["missing"] == []


def test_a_sweep_never_falls(file):
    rows = as_json(file, "--nodes", 9, "--sweep")["sweep"]
    assert [row["nodes"] for row in rows] == list(range(1, 10))
    flops = [row["flops"] for row in rows]
    assert flops == sorted(flops)


def test_several_tasks_share_the_nodes(file):
    plans = as_json(file.with_name("two.yaml"))["tasks"]
    assert [plan["task"] for plan in plans] == ["heavy", "light"]
    assert sum(len(plan["nodes"]) for plan in plans) <= 6
    assert len(plans[0]["nodes"]) > len(plans[1]["nodes"]) >= 1


def test_several_tasks_start_with_the_depths_that_the_file_asks_for(file):
    two = file.with_name("two.yaml")
    two.write_text(TWO.replace("{name: light,", "{name: light, train: {pipeline_model_parallel_size: 3},"))
    plans = as_json(two)["tasks"]
    assert plans[1]["pipeline"] == 3
    assert len(plans[1]["nodes"]) >= 3


def test_a_depth_that_leaves_a_node_idle_gives_way_and_that_is_said(file):
    plan = as_json(file, "--set", "slurm.nodes=3")
    assert plan["idle_nodes"] == []
    (note,) = plan["notes"]
    assert "pipeline_model_parallel_size 2" in note
    assert f"note: {note}" in run(file, "--set", "slurm.nodes=3").output
    assert as_json(file)["notes"] == []


def test_what_the_file_leaves_open_is_chosen(file):
    plan = as_json(
        file, "--set", "train.micro_batch_size=auto", "--set", "train.pipeline_model_parallel_size=auto"
    )
    check_whole(plan, micro_batches=16 // plan["micro_batch_size"])


def test_a_slow_node_gets_less_to_do(file):
    plan = as_json(file, "--nodes", 3, "--slow", "c3=2", "--hardware", "v100-32gb")
    layers = {
        stage["nodes"][0]: (stage["layers"][1] - stage["layers"][0] + 1) * replica["micro_batches"]
        for replica in plan["layout"]["replicas"]
        for stage in replica["stages"]
    }
    assert layers.get("c3", 0) < min(layers["c1"], layers["c2"])


def test_the_table_shows_layout_and_runners_up(file):
    shown = run(file, "--nodes", 3).output
    assert "lost out" in shown
    assert "idle nodes: none" in shown
    assert "s per iteration" in shown
    assert "state that moves" in run(file, "--lose", "c2").output
    assert "tokens/s" in run(file, "--sweep").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lose", "c99"], "no node c99"),
        (["--lose", "c[1-"], "c[1-"),
        (["--slow", "c1=fast"], "NODES=FACTOR"),
        (["--slow", "zz=2"], "no node zz"),
        (["--hardware", "abacus"], "no hardware description 'abacus'"),
        (["--hardware", "missing.json"], "missing.json"),
        (["--lose", "c[1-5]"], "no node is left"),
    ],
)
def test_bad_input_is_named_and_ends_with_code_2(file, words, message):
    result = run(file, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_it_imports_neither_torch_nor_slurm_libraries(file):
    program = (
        "import sys\n"
        "from unicron_hpc.cli.plan import command\n"
        f"command([{str(file)!r}, '--json'], standalone_mode=False)\n"
        "assert not {'torch', 'megatron', 'pyslurm', 'zmq'} & sys.modules.keys(), 'heavy import'\n"
    )
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": str(root), "PATH": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr

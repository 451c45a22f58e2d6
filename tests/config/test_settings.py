"""What train.yaml means: defaults, rules between settings, tasks, paths, and errors that teach."""

from __future__ import annotations

import re
from pathlib import Path

import pydantic
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.config.settings_text import VALID, changed, load_text, problems
from tests.slurm.field_cases import case
from unicron_hpc.config import SettingsError, SlurmSettings, dump_resolved, load, load_resolved
from unicron_hpc.config.fields import Context
from unicron_hpc.config.loading import loads
from unicron_hpc.errors import ConfigError


def test_defaults_follow_from_what_is_given() -> None:
    settings = load_text(VALID)
    assert settings.run_dir == Path("/here/runs")
    assert settings.checkpoint.dir == Path("/here/runs/checkpoints/tiny")
    assert settings.model.ffn_hidden_size == 256
    assert settings.model.num_query_groups == 4
    assert settings.model.max_position_embeddings == 64
    assert settings.model.vocab_size == 384
    assert settings.train.lr_decay_iters == 10
    assert settings.train.micro_batches == 8
    assert settings.slurm.total_nodes == 5
    assert load_text(changed("  num_layers", "  swiglu: true\n  num_layers")).model.ffn_hidden_size == 128


def test_a_job_without_tasks_has_one_named_as_the_job() -> None:
    (task,) = load_text(VALID).task_list()
    assert (task.name, task.weight, task.min_nodes) == ("tiny", 1.0, 1)


def test_the_job_is_named_as_its_file_when_it_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").touch()
    (tmp_path / "my run.yaml").write_text(
        VALID.replace("name: tiny\n", "").replace("/data/corpus.txt", "corpus.txt")
    )
    assert load(tmp_path / "my run.yaml").name == "my-run"


TASKS = """
tasks:
- name: big
  weight: 2.0
  min_nodes: 2
  model: {num_layers: 8}
- name: small
  train: {lr: 2e-3}
"""


def test_tasks_lay_their_settings_over_the_top_level() -> None:
    big, small = load_text(VALID + TASKS).task_list()
    assert (big.model.num_layers, big.model.hidden_size, big.weight, big.min_nodes) == (8, 64, 2.0, 2)
    assert (small.model.num_layers, small.train.lr, small.weight) == (4, 2e-3, 1.0)
    assert big.checkpoint.dir == Path("/here/runs/checkpoints/tiny/big")
    assert small.checkpoint.dir == Path("/here/runs/checkpoints/tiny/small")


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("tasks: []\n", "expected a list of trainings"),
        ("tasks: {a: 1}\n", "expected a list of trainings"),
        ("tasks: [x]\n", "tasks.0: expected a mapping"),
        ("tasks: [{weight: 1}]\n", "tasks.name is missing"),
        ("tasks: [{name: a}, {name: a}]\n", "two tasks are called 'a'"),
        (
            "tasks: [{name: a, min_nodes: 3}, {name: b, min_nodes: 2}]\n",
            "the tasks need 5 nodes side by side (a 3, b 2: min_nodes",
        ),
        ("tasks: [{name: a, weigth: 1}]\n", "did you mean `weight`"),
        ("tasks: [{name: a, model: {num_layers: 1}}, {name: b}]\n", "1 layers cannot fill 2 pipeline stages"),
        ("checkpoint: {dir: c}\ntasks: [{name: a}, {name: b}]\n", "same folder"),
    ],
)
def test_impossible_tasks_are_refused(tail: str, message: str) -> None:
    found = problems(VALID + tail)
    assert len(found) == 1, found
    assert message in found[0]


@pytest.mark.parametrize("word", ["auto", "Auto", '"auto"'])
@pytest.mark.parametrize(
    "key", ["micro_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"]
)
def test_sizes_that_the_planner_may_choose_can_be_auto_or_left_out(key: str, word: str) -> None:
    left_out = re.sub(rf"  {key}: .*\n", "", VALID)
    assert getattr(load_text(left_out).train, key) is None
    chosen = left_out.replace("  lr: 1e-3\n", f"  lr: 1e-3\n  {key}: {word}\n")
    assert getattr(load_text(chosen).train, key) is None
    given = left_out.replace("  lr: 1e-3\n", f"  lr: 1e-3\n  {key}: 1\n")
    assert getattr(load_text(given).train, key) == 1


def test_a_size_that_is_still_open_is_no_number_to_count_with() -> None:
    train = load_text(changed("micro_batch_size: 2", "micro_batch_size: auto")).train
    with pytest.raises(ConfigError, match="micro_batch_size has not been chosen"):
        _ = train.micro_batches


def test_nodes_beyond_whole_pipelines_with_work_are_the_planners_to_use() -> None:
    assert problems(changed("nodes: 4", "nodes: 5")) == []
    assert problems(changed("global_batch_size: 16", "global_batch_size: 2")) == []


def test_a_tensor_group_counts_as_one_place_inside_a_node() -> None:
    text = changed("pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 4")
    text = text.replace("lr: 1e-3", "lr: 1e-3\n  tensor_model_parallel_size: 2")
    assert problems(text.replace("nodes: 4", "nodes: 3\n  ranks_per_node: 3")) == [
        "train.yaml:3:10: nodes 3 x ranks_per_node 3 gives 9 ranks, of which tensor groups of 2 inside a node "
        "make 3, one replica needs 4 (pipeline_model_parallel_size 4) | write at least nodes: 4, or smaller "
        "parallel sizes"
    ]
    assert problems(text.replace("nodes: 4", "nodes: 4\n  ranks_per_node: 3")) == []


def test_pipelines_that_do_not_fit_side_by_side_are_refused_with_what_would() -> None:
    tail = "tasks: [{name: a, train: {pipeline_model_parallel_size: 3}}, {name: b, min_nodes: 1}]\n"
    assert problems(VALID + tail) == [
        "train.yaml:3:10: the tasks need 5 nodes side by side (a 3, b 2: min_nodes, or one pipeline of the "
        "sizes given), 4 are active | write nodes: 5 or more, or smaller pipeline_model_parallel_size or "
        "min_nodes"
    ]
    assert problems(VALID.replace("nodes: 4", "nodes: 5") + tail) == []
    assert problems(VALID.replace("nodes: 4", "nodes: 3\n  ranks_per_node: 2") + tail) == []


def test_a_mistake_in_a_default_is_reported_once_for_all_tasks() -> None:
    found = problems(changed("hidden_size: 64", "hidden_size: lots") + "tasks: [{name: a}, {name: b}]\n")
    assert found == [
        "train.yaml:7:16: model.hidden_size: expected a whole number, found 'lots' | write digits only"
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("global_batch_size: 16", "global_batch_size: 15", "train.yaml:12:22: global_batch_size 15 does not divide by micro_batch_size 2 | write 14 or 16"),
        ("hidden_size: 64", "hidden_size: 66", "train.yaml:7:16: hidden_size 66 does not divide by num_attention_heads 4 | write 64 or 68, or set kv_channels"),
        ("num_layers: 4", "num_layers: 1", "train.yaml:15:33: 1 layers cannot fill 2 pipeline stages | write at most 1, or give the model more layers"),
        ("lr: 1e-3", "lr: 1e-3\n  tensor_model_parallel_size: 2", "train.yaml:3:3: ranks_per_node 1 is below tensor_model_parallel_size 2: a tensor group stays inside one node | write ranks_per_node: 2, or a smaller tensor_model_parallel_size"),
        ("micro_batch_size: 2", "micro_batch_size: 0", "train.yaml:11:21: train.micro_batch_size: must be at least 1, found 0"),
        ("nodes: 4", "nodes: 1", "train.yaml:3:10: nodes 1 x ranks_per_node 1 gives 1 ranks, one replica needs 2 (tensor_model_parallel_size 1 x pipeline_model_parallel_size 2) | write at least nodes: 2, or smaller parallel sizes"),
        ("seq_length: 64", "seq_length: 64\n  max_position_embeddings: 32", "train.yaml:10:28: max_position_embeddings 32 is below seq_length 64 | write at least 64, or leave it out"),
        ("seq_length: 64", "seq_length: 64\n  vocab_size: 200", "train.yaml:10:15: vocab_size 200 is below the byte tokenizer's 257 tokens | write 384, or leave it out"),
        ("seq_length: 64", "seq_length: 64\n  num_query_groups: 3", "train.yaml:10:21: num_attention_heads 4 does not divide by num_query_groups 3 | write a divisor of 4"),
        ("lr: 1e-3", "lr: 1e-3\n  min_lr: 1", "train.yaml:15:11: min_lr 1 is above lr 0.001 | write at most 0.001"),
        ("text: /data/corpus.txt", "text: a\n  path: b", "train.yaml:17:3: exactly one of data.text and data.path is needed, both are given | e.g. `text: corpus.txt`"),
        ("name: tiny", "name: a b", "train.yaml:1:7: name: 'a b' cannot be a name: it becomes part of file names | use letters, digits, `.`, `_` and `-`, at most 64, starting with a letter or digit"),
        ("nodes: 4", "nodes: 4\n  signal: USR2@70000", "train.yaml:4:11: slurm.signal: 'USR2@70000': the time must be 0 to 65535 seconds | write e.g. USR2@120 or B:USR2@120"),
        ("nodes: 4", "nodes: 4\n  exclude: n[3-1]", "train.yaml:4:12: slurm.exclude: 'n[3-1]' is not a list of nodes: the range '3-1' runs backwards in '[3-1]' | write names and ranges like n[1-3,7],login"),
        ("nodes: 4", "nodes: 4\n  time: -5", "train.yaml:4:9: slurm.time: negative time '-5' | write UNLIMITED for no limit"),
        ("nodes: 4", "nodes: 4\n  setup:\n  - echo a: b", "train.yaml:5:5: slurm.setup.0: expected text, found a mapping | put text that contains `: ` in quotes"),
        ("nodes: 4", "nodes: 0", "train.yaml:3:10: slurm.nodes: must be at least 1, found 0"),
        ("nodes: 4", "nodes: 4.5", "train.yaml:3:10: slurm.nodes: expected a whole number, found '4.5' | write digits only"),
        ("nodes: 4", "nodes: 1e1", "train.yaml:3:10: slurm.nodes: expected a whole number, found '1e1' | write 10"),
        ("nodes: 4", "nodes: [4]", "train.yaml:3:10: slurm.nodes: expected a whole number, found a list | write digits only"),
        ("nodes: 4", "nodes:", "train.yaml:3:9: slurm.nodes: has no value | write one, or leave the key out"),
        ("lr: 1e-3", "lr: fast", "train.yaml:14:7: train.lr: expected a number, found 'fast' | write e.g. 0.1 or 1.5e-4"),
        ("lr: 1e-3", "lr: .nan", "train.yaml:14:7: train.lr: expected a number, found '.nan' | write e.g. 0.1 or 1.5e-4"),
        ("lr: 1e-3", "lr: nan", "train.yaml:14:7: train.lr: expected a number, found 'nan' | write e.g. 0.1 or 1.5e-4"),
        ("lr: 1e-3", "lr: 1e-3\n  lr_decay_style: Cosine", "train.yaml:15:19: train.lr_decay_style: expected 'constant', 'linear', 'cosine' or 'inverse-square-root', found 'Cosine' | did you mean `cosine`?"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_place_and_what_to_write(old: str, new: str, expected: str) -> None:
    assert problems(changed(old, new)) == [expected]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("nodes: 4", "nodes: 4\n  partion: x", "slurm.partion: unknown key | did you mean `partition`?"),
        ("nodes: 4", "nodes: 4\n  cpus-per-task: 2", "slurm.cpus-per-task: unknown key | did you mean `cpus_per_task`?"),
        ("nodes: 4", "nodes: 4\n  ntasks-per-node: 2", "slurm.ntasks-per-node: unknown key | cannot be given: one agent runs on each node; set `ranks_per_node`"),
        ("nodes: 4", "nodes: 4\n  zzz: 2", "slurm.zzz: unknown key | no long option of sbatch is called so (write `_` for `-`)"),
        ("num_layers: 4", "num_layers: 4\n  micro_batch_size: 2", "model.micro_batch_size: unknown key | `micro_batch_size` belongs under `train:`"),
        ("num_layers: 4", "num_layers: 4\n  hiden_dropout: 0", "model.hiden_dropout: unknown key | did you mean `hidden_dropout`?"),
        ("name: tiny", "name: tiny\ntrian: {}", "trian: unknown key | did you mean `train`?"),
        ("name: tiny", "name: tiny\nnodes: 3", "nodes: unknown key | `nodes` belongs under `slurm:`"),
    ],
)  # fmt: skip
def test_an_unknown_key_comes_with_the_one_that_was_meant(old: str, new: str, expected: str) -> None:
    (found,) = problems(changed(old, new))
    assert found.partition(": ")[2] == expected
    key = new.rpartition("\n")[2].strip().partition(":")[0]
    line, column = found.split(":")[1:3]
    assert changed(old, new).splitlines()[int(line) - 1][int(column) - 1 :].startswith(key)


def test_a_missing_section_and_a_missing_key_are_named() -> None:
    assert problems("name: x\nslurm: {nodes: 1}\nmodel: {}\ndata: {text: x}\n") == [
        "train.yaml:1:1: train: is missing | add `train:` with `global_batch_size`, `train_iters`, `lr`",
        "train.yaml:3:8: model.num_layers is missing | add `num_layers:` under `model:`",
        "train.yaml:3:8: model.hidden_size is missing | add `hidden_size:` under `model:`",
        "train.yaml:3:8: model.num_attention_heads is missing | add `num_attention_heads:` under `model:`",
        "train.yaml:3:8: model.seq_length is missing | add `seq_length:` under `model:`",
    ]


def test_all_problems_are_listed_at_once_in_the_order_of_the_file() -> None:
    text = (
        changed("nodes: 4", "nodes: x").replace("hidden_size: 64", "hidden_size: 65").replace("lr:", "lrr:")
    )
    found = problems(text, ["recovery.node_timeout=0.1"])
    assert [line.split(":")[1] for line in found[:4]] == ["3", "7", "11", "14"]
    assert found[4].startswith("--set recovery.node_timeout=0.1: node_timeout 0.1 s leaves no room")
    with pytest.raises(SettingsError, match="5 problems in the settings"):
        load_text(text, ["recovery.node_timeout=0.1"])
    assert SettingsError.exit_code == 2


@pytest.mark.parametrize("workload", ["mymodule:Model", "{command: [python, x.py]}", "gtp"])
def test_workloads_that_do_not_run_yet_are_refused(workload: str) -> None:
    (found,) = problems(VALID + f"workload: {workload}\n")
    assert "is not supported by this version" in found
    assert load_text(VALID + "workload: gpt\n").workload == "gpt"


def test_a_section_whose_lines_are_all_comments_is_empty() -> None:
    assert load_text(VALID + "recovery:\n  # node_timeout: 2\n").recovery.node_timeout == 2.0


def test_set_replaces_adds_and_reaches_into_tasks() -> None:
    overrides = [
        "train.lr=5e-4",
        "slurm.time=72:00:00",
        "slurm.exclude=[n1, n2]",
        "recovery.drain=no",
        "tasks.1.weight=3",
    ]
    settings = load_text(VALID + TASKS, overrides)
    assert settings.slurm.time_seconds == 259200
    assert settings.slurm.exclude == "n1,n2"
    assert settings.recovery.drain is False
    assert [task.weight for task in settings.tasks] == [2.0, 3.0]
    assert settings.tasks[0].train.lr == 5e-4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lr", "is not of the form key.key=value"),
        ("=3", "is not of the form key.key=value"),
        ("train..lr=3", "is not of the form key.key=value"),
        ("train.lrr=3", "unknown key | did you mean `lr`?"),
        ("train.lr.x=3", "train.lr is a single value"),
        ("train.lr=[", "not valid YAML"),
        ("train.lr=x", "expected a number, found 'x'"),
        ("slurm=3", "expected settings below it"),
    ],
)
def test_a_wrong_set_is_named_itself(override: str, message: str) -> None:
    (found,) = problems(VALID, [override])
    assert found.startswith(f"--set {override}: ")
    assert message in found


def test_an_item_that_is_not_there_cannot_be_set() -> None:
    assert "tasks has 2 items, numbered from 0; no '2'" in problems(VALID + TASKS, ["tasks.2.weight=1"])[0]


def test_variables_in_paths_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/u")
    monkeypatch.setenv("HOME", "/home/u")
    line = case("yaml-15")[0].replace("log_dir", "run_dir")
    text = VALID.replace("text: /data/corpus.txt", "text: sub/corpus.txt")
    context = Context(Path("/project"), Path("/here"))

    def run_dir(value: str) -> str:
        with pytest.raises(SettingsError, match=r"no file /project/sub/corpus\.txt"):
            loads(text + value, "t.yaml", context)
        return str(
            loads(
                text.replace("text: sub/corpus.txt", f"text: {__file__}") + value, "t.yaml", context
            ).run_dir
        )

    assert run_dir(line) == "/scratch/u/logs"
    assert run_dir("run_dir: ${SCRATCH}x") == "/scratch/ux"
    assert run_dir("run_dir: ~/runs") == "/home/u/runs"
    assert run_dir("run_dir: a$$b") == "/here/a$b"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("$NOT_SET_ANYWHERE/x", "environment variable NOT_SET_ANYWHERE is not set"),
        ("${NOT_SET_ANYWHERE}", "environment variable NOT_SET_ANYWHERE is not set"),
        ("a$", "a lone"),
        ("~nobody-of-that-name/x", "no home folder"),
        ('"a\\nb"', "expected a path"),
    ],
)
def test_paths_that_cannot_be_expanded_are_refused(value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_text(VALID + f"run_dir: {value}\n", expand=True)


def test_a_data_path_needs_both_files_of_an_indexed_dataset(tmp_path: Path) -> None:
    text = VALID.replace("text: /data/corpus.txt", f"path: {tmp_path}/set_document")
    (tmp_path / "set_document.bin").touch()
    with pytest.raises(SettingsError, match=r"set_document\.idx"):
        load_text(text, expand=True)
    (tmp_path / "set_document.idx").touch()
    assert load_text(text, expand=True).data.path == tmp_path / "set_document"


def test_a_bare_name_of_a_program_is_looked_up_in_the_job() -> None:
    assert load_text(changed("nodes: 4", "nodes: 4\n  python: python3")).slurm.python == "python3"
    assert (
        load_text(changed("nodes: 4", "nodes: 4\n  python: env/bin/python")).slurm.python
        == "/project/env/bin/python"
    )


def test_settings_are_frozen() -> None:
    with pytest.raises(pydantic.ValidationError):
        load_text(VALID).slurm.nodes = 3  # type: ignore[misc]


def test_no_option_is_both_known_and_refused() -> None:
    assert not set(SlurmSettings.REFUSED) & set(SlurmSettings.model_fields)


_WORDS = st.sampled_from(
    ["x", "no", "0123", "0o17", "1e5", "72:00:00", "a: b", "# c", "'q'", '"', "null", "ü", "[a", "~"]
)


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    comment=_WORDS,
    setup=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20), max_size=3),
    lr=st.floats(1e-9, 1e9),
    tasks=st.booleans(),
    folder=st.text(alphabet="a$ %ü~", min_size=1, max_size=5),
)
def test_resolved_settings_are_read_back_as_they_were(
    comment: str, setup: list[str], lr: float, tasks: bool, folder: str
) -> None:
    settings = load_text(VALID + (TASKS if tasks else ""), ["train.min_lr=0", f"train.lr={lr!r}"])
    slurm = settings.slurm.model_copy(update={"comment": comment, "setup": tuple(setup)})
    settings = settings.model_copy(update={"slurm": slurm, "run_dir": Path("/", folder)})
    if not tasks:
        assert "\ntasks:" not in dump_resolved(settings)
    again = loads(dump_resolved(settings), "train.yaml", Context(Path("/"), Path("/"), expand=False))
    assert again == settings


@pytest.mark.parametrize("word", ["no", "0123", "0o17", "0x1f", "1e5", "72:00:00", "a: b", "null", "~"])
def test_a_text_that_has_to_be_quoted_is_quoted_in_the_resolved_file(word: str) -> None:
    settings = load_text(VALID)
    settings = settings.model_copy(update={"slurm": settings.slurm.model_copy(update={"comment": word})})
    assert load_text(dump_resolved(settings)).slurm.comment == word


def test_the_resolved_file_of_a_run_folder_is_found_by_the_folder(tmp_path: Path) -> None:
    settings = load_text(VALID)
    (tmp_path / "train.yaml").write_text(dump_resolved(settings))
    assert load_resolved(tmp_path) == load_resolved(tmp_path / "train.yaml") == settings

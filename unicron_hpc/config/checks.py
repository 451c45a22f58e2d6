"""Rules that tie settings to each other.

Each yields (path of the key at fault, what is wrong, what to write instead).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from unicron_hpc.config.sections import (
    BYTE_TOKENS,
    DataSettings,
    ModelSettings,
    RecoverySettings,
    TrainSettings,
    padded_vocab,
)
from unicron_hpc.config.settings import TaskSettings
from unicron_hpc.config.slurm_settings import SlurmSettings

Finding: TypeAlias = tuple[tuple[str | int, ...], str, str]


def check_model(model: ModelSettings) -> Iterator[Finding]:
    """A model that Megatron would refuse inside the ranks is refused here."""
    heads, hidden = model.num_attention_heads, model.hidden_size
    if "kv_channels" not in model.model_fields_set and hidden % heads:
        low, high = hidden // heads * heads, (hidden // heads + 1) * heads
        yield (
            ("model", "hidden_size"),
            f"hidden_size {hidden} does not divide by num_attention_heads {heads}",
            f"write {low or high} or {high}, or set kv_channels",
        )
    if heads % model.num_query_groups:
        yield (
            ("model", "num_query_groups"),
            f"num_attention_heads {heads} does not divide by num_query_groups {model.num_query_groups}",
            f"write a divisor of {heads}",
        )
    if model.seq_length > model.max_position_embeddings:
        yield (
            ("model", "max_position_embeddings"),
            f"max_position_embeddings {model.max_position_embeddings} is below seq_length {model.seq_length}",
            f"write at least {model.seq_length}, or leave it out",
        )
    if model.rotary_percent > 1:
        yield (
            ("model", "rotary_percent"),
            f"rotary_percent {model.rotary_percent:g} is above 1",
            "write at most 1.0",
        )
    if model.position_embedding_type == "rope" and model.kv_channels % 2:
        yield (
            ("model", "kv_channels"),
            f"rotary embeddings need heads of even width, these have {model.kv_channels}",
            "change hidden_size, num_attention_heads or kv_channels",
        )


def check_train(train: TrainSettings) -> Iterator[Finding]:
    """Batch sizes and the learning rate's course."""
    micro, batch = train.micro_batch_size, train.global_batch_size
    if micro is not None and batch % micro:
        low = batch // micro * micro
        yield (
            ("train", "global_batch_size"),
            f"global_batch_size {batch} does not divide by micro_batch_size {micro}",
            f"write {low} or {low + micro}" if low else f"write {micro} or a multiple of it",
        )
    if train.min_lr > train.lr:
        yield (
            ("train", "min_lr"),
            f"min_lr {train.min_lr:g} is above lr {train.lr:g}",
            f"write at most {train.lr:g}",
        )
    if train.lr_warmup_iters > train.lr_decay_iters:
        yield (
            ("train", "lr_warmup_iters"),
            f"lr_warmup_iters {train.lr_warmup_iters} is above lr_decay_iters {train.lr_decay_iters}",
            f"write at most {train.lr_decay_iters}",
        )


def check_data(data: DataSettings, *, look: bool) -> Iterator[Finding]:
    """Exactly one source; with `look` it must be there."""
    if (data.text is None) == (data.path is None):
        found = "neither is" if data.text is None else "both are"
        yield (
            ("data",),
            f"exactly one of data.text and data.path is needed, {found} given",
            "e.g. `text: corpus.txt`",
        )
    if not look:
        return
    if data.text is not None and not data.text.is_file():
        yield (
            ("data", "text"),
            f"data.text: no file {data.text}",
            "relative paths start from the folder of train.yaml",
        )
    if data.path is not None:
        missing = [end for end in (".bin", ".idx") if not data.path.with_name(data.path.name + end).is_file()]
        if missing:
            yield (
                ("data", "path"),
                f"data.path: no file {data.path}{missing[0]}",
                "give the path of an indexed dataset without .bin or .idx",
            )


def check_vocabulary(model: ModelSettings, data: DataSettings) -> Iterator[Finding]:
    """Every token that the tokenizer makes must have its row in the embedding."""
    if data.text is not None and model.vocab_size < BYTE_TOKENS:
        yield (
            ("model", "vocab_size"),
            f"vocab_size {model.vocab_size} is below the byte tokenizer's {BYTE_TOKENS} tokens",
            f"write {padded_vocab(BYTE_TOKENS)}, or leave it out",
        )


def check_parallel(model: ModelSettings, train: TrainSettings) -> Iterator[Finding]:
    """The model must be divisible as the parallel sizes say."""
    tensor, stages = train.tensor_model_parallel_size, train.pipeline_model_parallel_size
    for key in ("num_attention_heads", "num_query_groups", "ffn_hidden_size", "vocab_size"):
        size = int(getattr(model, key))
        if tensor is not None and size % tensor:
            yield (
                ("train", "tensor_model_parallel_size"),
                f"{key} {size} does not divide by tensor_model_parallel_size {tensor}",
                f"write a divisor of {size}",
            )
    if stages is not None and model.num_layers < stages:
        yield (
            ("train", "pipeline_model_parallel_size"),
            f"{model.num_layers} layers cannot fill {stages} pipeline stages",
            f"write at most {model.num_layers}, or give the model more layers",
        )


def check_ranks(slurm: SlurmSettings, train: TrainSettings) -> Iterator[Finding]:
    """The active nodes must hold a replica of the sizes that are given; what they hold beside is planned."""
    tensor, stages = train.tensor_model_parallel_size or 1, train.pipeline_model_parallel_size or 1
    have = f"nodes {slurm.nodes} x ranks_per_node {slurm.ranks_per_node}"
    if slurm.ranks_per_node < tensor:
        yield (
            ("slurm", "ranks_per_node"),
            f"ranks_per_node {slurm.ranks_per_node} is below tensor_model_parallel_size {tensor}: "
            "a tensor group stays inside one node",
            f"write ranks_per_node: {tensor}, or a smaller tensor_model_parallel_size",
        )
        return
    per_node = slurm.ranks_per_node // tensor
    groups = slurm.nodes * per_node
    if groups >= stages:
        return
    ranks = slurm.nodes * slurm.ranks_per_node
    if ranks < tensor * stages:
        short = (
            f"gives {ranks} ranks, one replica needs {tensor * stages} "
            f"(tensor_model_parallel_size {tensor} x pipeline_model_parallel_size {stages})"
        )
    else:
        short = (
            f"gives {ranks} ranks, of which tensor groups of {tensor} inside a node make {groups}, "
            f"one replica needs {stages} (pipeline_model_parallel_size {stages})"
        )
    yield (
        ("slurm", "nodes"),
        f"{have} {short}",
        f"write at least nodes: {-(-stages // per_node)}, or smaller parallel sizes",
    )


def check_recovery(recovery: RecoverySettings, slurm: SlurmSettings | None) -> Iterator[Finding]:
    """Timeouts must leave room for what they wait for."""
    if recovery.node_timeout < 2 * recovery.heartbeat_interval:
        yield (
            ("recovery", "node_timeout"),
            f"node_timeout {recovery.node_timeout:g} s leaves no room for one late heartbeat "
            f"(heartbeat_interval {recovery.heartbeat_interval:g} s)",
            f"write at least {2 * recovery.heartbeat_interval:g}",
        )
    if recovery.iteration_failure_factor <= 1:
        yield (
            ("recovery", "iteration_failure_factor"),
            f"iteration_failure_factor {recovery.iteration_failure_factor:g} calls the mean itself a fault",
            "write a larger one, e.g. 3.0",
        )
    if slurm is not None and recovery.min_nodes > slurm.nodes:
        yield (
            ("recovery", "min_nodes"),
            f"min_nodes {recovery.min_nodes} is above the {slurm.nodes} active nodes",
            f"write at most {slurm.nodes}",
        )


def check_tasks(tasks: tuple[TaskSettings, ...], slurm: SlurmSettings) -> Iterator[Finding]:
    """Tasks have names and checkpoint folders of their own, and together fit into the allocation."""
    seen: dict[str, int] = {}
    folders: dict[str, str] = {}
    for k, task in enumerate(tasks):
        if task.name in seen:
            yield ("tasks", k, "name"), f"two tasks are called {task.name!r}", "give each its own name"
        elif (folder := str(task.checkpoint.dir)) in folders:
            yield (
                ("tasks", k, "checkpoint", "dir"),
                f"tasks {folders[folder]!r} and {task.name!r} write checkpoints to the same folder {folder}",
                "leave `dir` out, or give each task its own",
            )
        seen[task.name] = k
        folders.setdefault(str(task.checkpoint.dir), task.name)
    needs = {task.name: _least_nodes(task, slurm) for task in tasks}
    needed = sum(needs.values())
    if needed > slurm.nodes:
        each = ", ".join(f"{name} {count}" for name, count in needs.items())
        deep = any(count > task.min_nodes for task, count in zip(tasks, needs.values(), strict=False))
        why = "min_nodes, or one pipeline of the sizes given" if deep else "min_nodes"
        yield (
            ("slurm", "nodes"),
            f"the tasks need {needed} nodes side by side ({each}: {why}), {slurm.nodes} are active",
            f"write nodes: {needed} or more, or "
            + ("smaller pipeline_model_parallel_size or min_nodes" if deep else "lower min_nodes"),
        )


def _least_nodes(task: TaskSettings, slurm: SlurmSettings) -> int:
    """Nodes that the task asks for at its start."""
    per_node = slurm.ranks_per_node // (task.train.tensor_model_parallel_size or 1)
    return max(task.min_nodes, -(-(task.train.pipeline_model_parallel_size or 1) // max(per_node, 1)))

"""From checked settings to what the planner works with."""

from __future__ import annotations

from collections.abc import Sequence

from unicron_hpc.config.settings import TaskSettings
from unicron_hpc.config.slurm_settings import SlurmSettings
from unicron_hpc.errors import PlanError
from unicron_hpc.planner.hardware import Hardware, hardware
from unicron_hpc.planner.work import NodeSlots, TaskWork

#: Hardware assumed for each `train.device` until iterations have been measured.
ASSUMED = {"cpu": "cpu-node", "cuda": "a100-80gb"}


def task_work(task: TaskSettings, slurm: SlurmSettings, *, machine: Hardware | None = None) -> TaskWork:
    """The task as the planner sees it.

    Parameters
    ----------
    task, slurm
        Checked settings.
    machine
        What runs it; None for the description assumed for the task's device.

    Raises
    ------
    PlanError
        When a tensor group does not fit in a node.
    """
    model, train = task.model, task.train
    if (train.tensor_model_parallel_size or 1) > slurm.ranks_per_node:
        raise PlanError(
            f"tensor_model_parallel_size {train.tensor_model_parallel_size} exceeds ranks_per_node"
            f" {slurm.ranks_per_node}: a tensor group stays inside one node",
            where=f"task '{task.name}'",
            hint=f"at most {slurm.ranks_per_node}, or more ranks_per_node",
        )
    return TaskWork(
        name=task.name,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.kv_channels,
        ffn_hidden_size=model.ffn_hidden_size,
        gated=model.swiglu,
        seq_length=model.seq_length,
        vocab_size=model.vocab_size,
        tied=model.tied,
        learned_positions=model.learned_positions,
        global_batch_size=train.global_batch_size,
        micro_batch_size=train.micro_batch_size,
        tensor=train.tensor_model_parallel_size,
        pipeline=train.pipeline_model_parallel_size,
        weight=task.weight,
        min_nodes=task.min_nodes,
        hardware=machine if machine is not None else hardware(ASSUMED[train.device]),
    )


def node_slots(names: Sequence[str], slurm: SlurmSettings) -> tuple[NodeSlots, ...]:
    """The named nodes with `ranks_per_node` slots each."""
    return tuple(NodeSlots(name, slurm.ranks_per_node) for name in names)

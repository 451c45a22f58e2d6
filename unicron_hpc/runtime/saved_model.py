"""What a checkpoint says of the model that it holds; imports no torch."""

from __future__ import annotations

from typing import Any

from unicron_hpc import __version__
from unicron_hpc.config import TaskSettings

#: Model arguments that decide neither names nor shapes of the state: a resumed run may change them.
_FREE = {
    "seq_length",
    "hidden_dropout",
    "attention_dropout",
    "init_method_std",
    "norm_epsilon",
    "rotary_base",
    "rotary_percent",
}


def model_arguments(task: TaskSettings) -> dict[str, Any]:
    """The arguments that must agree between a checkpoint and the model that loads it."""
    return {key: value for key, value in task.model.model_dump(mode="json").items() if key not in _FREE}


def common_of(task: TaskSettings, iteration: int) -> dict[str, Any]:
    """What is the same on all ranks, plain JSON values."""
    return {
        "iteration": iteration,
        "seed": task.train.seed,
        "version": __version__,
        "model": model_arguments(task),
    }

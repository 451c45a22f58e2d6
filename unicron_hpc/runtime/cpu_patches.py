"""Makes Megatron-core, which takes CUDA for granted, run on CPU.

Only names that Megatron's modules look up are replaced. A `TorchFunctionMode` would do the same, but it
sits in the way of every torch call of every iteration.
"""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any

import torch

#: Modules that write `device="cuda"` literally.
_LITERAL_CUDA = (
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.transformer.utils",
)
_FACTORIES = ("zeros", "ones", "empty", "tensor", "full", "arange")

_applied = False


def apply() -> None:
    """Patch once per process; further calls do nothing."""
    global _applied
    if _applied:
        return
    _applied = True
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *_: None
    for name in _LITERAL_CUDA:
        redirect(name)
    # Activation recomputation saves and restores the state of a GPU's generator as well.
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    nothing = torch.empty(0, dtype=torch.uint8)
    random._get_cuda_rng_state = lambda *_, **__: nothing  # type: ignore[attr-defined]
    random._set_cuda_rng_state = lambda *_, **__: None  # type: ignore[attr-defined]


def redirect(module_name: str) -> None:
    """Give one module its own `torch`, whose tensor factories read `device="cuda"` as CPU."""
    module = importlib.import_module(module_name)
    stand_in = types.ModuleType("torch")
    stand_in.__dict__.update(torch.__dict__)
    for name in _FACTORIES:
        setattr(stand_in, name, _on_cpu(getattr(torch, name)))
    module.__dict__["torch"] = stand_in


def _on_cpu(factory: Any) -> Any:
    @functools.wraps(factory)
    def build(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return build

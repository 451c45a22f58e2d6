"""AdamW over whole units, Megatron's learning-rate schedule and its clipping."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch.optim.adamw import adamw

from unicron_hpc.config.sections import TrainSettings
from unicron_hpc.runtime.gradients import Gradients
from unicron_hpc.runtime.unit_map import UnitSpec
from unicron_hpc.runtime.unit_state import EXP_AVG, EXP_AVG_SQ, WEIGHT, UnitState, UnitStates


def clip_factor(grad_norm: float, clip_grad: float) -> float:
    """What gradients are multiplied with; Megatron's formula (`optimizer/clip_grads.py`)."""
    if clip_grad <= 0:
        return 1.0
    return min(1.0, clip_grad / (grad_norm + 1.0e-6))


class LearningRate:
    """Learning rate as a function of the iteration: Megatron's scheduler, asked instead of stepped."""

    def __init__(self, train: TrainSettings) -> None:
        self._batch = train.global_batch_size
        self._schedule = OptimizerParamScheduler(
            SimpleNamespace(param_groups=[]),
            init_lr=0.0,
            max_lr=train.lr,
            min_lr=train.min_lr,
            lr_warmup_steps=train.lr_warmup_iters * self._batch,
            lr_decay_steps=train.lr_decay_iters * self._batch,
            lr_decay_style=train.lr_decay_style,
            start_wd=train.weight_decay,
            end_wd=train.weight_decay,
            wd_incr_steps=train.train_iters * self._batch,
            wd_incr_style="constant",
        )

    def at(self, iteration: int) -> float:
        """Rate of update `iteration`, from 1; Megatron counts the samples seen before it."""
        self._schedule.num_steps = (iteration - 1) * self._batch
        return float(self._schedule.get_lr({}))


class Adam:
    """Decoupled weight decay, as in Megatron: not for biases and one-dimensional parameters."""

    def __init__(self, train: TrainSettings) -> None:
        self._train = train

    def step(self, specs: Iterable[UnitSpec], states: UnitStates, gradients: Gradients, lr: float) -> None:
        """Apply one update to every unit of `specs`; raises the units' iteration by one."""
        decayed: list[tuple[UnitState, slice, torch.Tensor]] = []
        plain: list[tuple[UnitState, slice, torch.Tensor]] = []
        units = [(spec, states[spec.key]) for spec in specs]
        for spec, state in units:
            gradient = gradients.unit(spec.key)
            if spec.decayed:
                decayed.append((state, slice(0, spec.decayed), gradient))
            if spec.decayed < spec.numel:
                plain.append((state, slice(spec.decayed, spec.numel), gradient))
        self._update(decayed, lr, self._train.weight_decay)
        self._update(plain, lr, 0.0)
        for _, state in units:
            state.iteration += 1

    def _update(self, parts: list[tuple[UnitState, slice, torch.Tensor]], lr: float, decay: float) -> None:
        train = self._train
        adamw(
            [state.flat[WEIGHT, part] for state, part, _ in parts],
            [gradient[part] for _, part, gradient in parts],
            [state.flat[EXP_AVG, part] for state, part, _ in parts],
            [state.flat[EXP_AVG_SQ, part] for state, part, _ in parts],
            [],
            # Steps before this one: Adam's bias correction counts from the unit's own beginning.
            [torch.tensor(float(state.iteration), device=state.flat.device) for state, _, _ in parts],
            fused=True,
            amsgrad=False,
            beta1=train.adam_beta1,
            beta2=train.adam_beta2,
            lr=lr,
            weight_decay=decay,
            eps=train.adam_eps,
            maximize=False,
        )

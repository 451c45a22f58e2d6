"""A plain Megatron-core training loop: the yardstick for what supervision costs.

Megatron's process groups, model, DDP wrapper, schedule and gradient finalisation, with torch's fused AdamW
and its fused norm (Megatron's own optimizer insists on CUDA tensors, and its norm and clipping without Apex
are slower). Nothing of the engine runs in an iteration. Run by one process per rank, with torchrun's
environment variables:

    RANK=0 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python bench/plain_loop.py train.yaml ...
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import initialize_rng_tracker

from unicron_hpc.config.settings import TaskSettings
from unicron_hpc.runtime import cpu_patches
from unicron_hpc.runtime.chunk import transformer_config
from unicron_hpc.runtime.initial import initial_state
from unicron_hpc.runtime.iteration import MicroBatchSource
from unicron_hpc.runtime.optimizer import LearningRate
from unicron_hpc.runtime.unit_map import map_units


class PlainLoop:
    """One rank of the loop; the layout is Megatron's own even one.

    `losses` equal the engine's in the same layout when there is no dropout: weights start the same and
    data-parallel rank d takes the d-th run of the global batch's micro-batches.
    """

    def __init__(self, task: TaskSettings, data: MicroBatchSource, tensor: int, pipeline: int) -> None:
        cpu_patches.apply()
        torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
        parallel_state.initialize_model_parallel(tensor, pipeline, create_gloo_process_groups=False)
        initialize_rng_tracker(inference_rng_tracker=True)
        self._task = task
        self._data = data
        self._first = parallel_state.is_pipeline_first_stage()
        self._last = parallel_state.is_pipeline_last_stage()
        self._data_group = parallel_state.get_data_parallel_group()
        model = task.model
        config = transformer_config(
            task,
            tensor,
            pipeline_model_parallel_size=pipeline,
            calculate_per_token_loss=False,
            perform_initialization=True,  # also marks which parameters are split
        )
        module = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(normalization=model.normalization),
            vocab_size=model.vocab_size,
            max_sequence_length=model.max_position_embeddings,
            pre_process=self._first,
            post_process=self._last,
            share_embeddings_and_output_weights=model.tied,
            position_embedding_type=model.position_embedding_type,
            rotary_percent=model.rotary_percent,
            rotary_base=model.rotary_base,
        )
        self._fill(module, tensor, pipeline)
        self._model = DistributedDataParallel(config, DistributedDataParallelConfig(), module)
        config.finalize_model_grads_func = finalize_model_grads
        config.no_sync_func = self._model.no_sync
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        main_tensor_rank = parallel_state.get_tensor_model_parallel_rank() == 0
        self._counted = [
            p.main_grad
            for p in self._parameters
            if not getattr(p, "shared", False)  # the last stage's copy of tied embeddings
            and (main_tensor_rank or getattr(p, "tensor_model_parallel", False))
        ]
        train = task.train
        self._rate = LearningRate(train)
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self._parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
                {"params": [p for p in self._parameters if p.dim() < 2], "weight_decay": 0.0},
            ],
            lr=train.lr,
            betas=(train.adam_beta1, train.adam_beta2),
            eps=train.adam_eps,
            fused=True,
        )
        share = train.micro_batches // dist.get_world_size(self._data_group)
        start = share * dist.get_rank(self._data_group)
        self._indices = range(start, start + share)
        self._iteration = 0

    def iterate(self) -> tuple[float, float | None]:
        """One iteration; returns its seconds and, on last stages, the mean loss of the global batch."""
        began = time.perf_counter()
        self._iteration += 1
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad(set_to_none=True)
        sums = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=iter(self._indices),
            model=[self._model],
            num_microbatches=len(self._indices),
            seq_length=self._task.model.seq_length,
            micro_batch_size=self._task.train.fixed_micro_batch_size,
        )
        squared = torch.stack(torch._foreach_norm(self._counted)).square().sum()
        dist.all_reduce(squared, group=parallel_state.get_model_parallel_group())
        norm = float(squared.sqrt())
        gradients = [p.main_grad for p in self._parameters]
        factor = self._task.train.clip_grad / (norm + 1.0e-6)
        if 0 < factor < 1:
            torch._foreach_mul_(gradients, factor)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate.at(self._iteration)
        self._optimizer.step()
        loss = None
        if self._last:
            total = torch.stack(sums).sum(0)
            dist.all_reduce(total, group=self._data_group)
            loss = float(total[0] / total[1])
        return time.perf_counter() - began, loss

    def _forward(self, indices: Iterator[int], model: Any) -> tuple[torch.Tensor, Any]:
        index = next(indices)
        batch: dict[str, torch.Tensor] = {}
        if self._first or self._last:
            batch = self._data.micro_batch(self._iteration, index)
        output = model(
            batch["tokens"] if self._first else None,
            batch["position_ids"] if self._first else None,
            None,
            labels=batch["labels"] if self._last else None,
        )
        return output, partial(_loss, batch.get("loss_mask"))

    def _fill(self, module: torch.nn.Module, tensor: int, pipeline: int) -> None:
        """The same initial weights as the engine's."""
        model = self._task.model
        first_layer = parallel_state.get_pipeline_model_parallel_rank() * model.num_layers // pipeline
        specs, parameters = map_units(
            module,
            first_layer=first_layer,
            tied=model.tied,
            gated=model.swiglu,
            tensor_index=parallel_state.get_tensor_model_parallel_rank(),
            tensor=tensor,
        )
        for spec in specs:
            state = initial_state(spec, module.config, self._task.train.seed, torch.device("cpu"))
            for entry, weight in state.views(0):
                parameters[spec.unit, entry.name].data.copy_(weight)


def _loss(mask: torch.Tensor | None, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    assert mask is not None  # the schedule asks only the last stage
    total = (losses * mask).sum()
    tokens = mask.sum()
    return total, tokens.int(), torch.stack((total.detach(), tokens))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train_yaml", type=Path)
    parser.add_argument("--run-folder", type=Path, required=True, help="where the data set is or is built")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--tensor", type=int)
    parser.add_argument("--pipeline", type=int)
    options = parser.parse_args()
    from unicron_hpc.config import load_resolved
    from unicron_hpc.runtime.task_data import open_task_data

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    task = load_resolved(options.train_yaml).task_list()[0]
    dist.init_process_group("gloo")
    loop = PlainLoop(
        task,
        open_task_data(task, options.run_folder),
        options.tensor or task.train.tensor_model_parallel_size or 1,
        options.pipeline or task.train.pipeline_model_parallel_size or 1,
    )
    for iteration in range(1, options.iterations + 1):
        seconds, loss = loop.iterate()
        if dist.get_rank() == dist.get_world_size() - 1:
            line = {"iteration": iteration, "seconds": seconds, "loss": loss, "time": time.time()}
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())

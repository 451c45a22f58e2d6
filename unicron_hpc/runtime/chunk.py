"""This rank's part of the model: a Megatron-core `GPTModel` of any run of layers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer

from unicron_hpc.config.settings import TaskSettings
from unicron_hpc.planner.layout import Position
from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime.rng import EMBEDDING_SLOT, DropoutSeeds
from unicron_hpc.runtime.unit_map import map_units
from unicron_hpc.runtime.unit_state import WEIGHT, UnitStates


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """What a chunk's model depends on: equal keys mean that the chunk can serve on in a new epoch."""

    first: int
    last: int
    is_first: bool
    is_last: bool
    tensor_index: int
    tensor: int

    @classmethod
    def of(cls, position: Position) -> ChunkKey:
        stage = position.stage
        return cls(
            stage.first,
            stage.last,
            position.is_first,
            position.is_last,
            position.tensor_index,
            len(stage.ranks),
        )


class GlobalLayer(TransformerLayer):  # type: ignore[misc]
    """A transformer layer that knows its number in the whole model, however the layers are spread.

    Megatron derives that number from an even partition. Here the chunk counts as an unpipelined model
    and `first_layer` is added.
    """

    def __init__(self, config: Any, submodules: Any, layer_number: int, first_layer: int, **kwargs: Any):
        super().__init__(config, submodules, layer_number=first_layer + layer_number, **kwargs)


class Chunk:
    """The model part, its units, and its parameters as views into unit states.

    Attributes
    ----------
    module
        The Megatron model; layers count from 0 within it.
    specs
        Units that it needs, in model order.
    """

    def __init__(
        self,
        key: ChunkKey,
        task: TaskSettings,
        groups: ProcessGroupCollection,
        seeds: DropoutSeeds | None,
        device: torch.device,
    ) -> None:
        model = task.model
        self.key = key
        self.config = transformer_config(task, key.tensor)
        self._groups = groups
        self.module = GPTModel(
            config=self.config,
            transformer_layer_spec=_layers(task, key, self.config),
            vocab_size=model.vocab_size,
            max_sequence_length=model.max_position_embeddings,
            pre_process=key.is_first,
            post_process=key.is_last,
            share_embeddings_and_output_weights=model.tied,
            position_embedding_type=model.position_embedding_type,
            rotary_percent=model.rotary_percent,
            rotary_base=model.rotary_base,
            pg_collection=groups,
        ).to(device)
        self.specs, self._parameters = map_units(
            self.module,
            first_layer=key.first,
            tied=model.tied,
            gated=model.swiglu,
            tensor_index=key.tensor_index,
            tensor=key.tensor,
        )
        self.needed = {spec.key: spec for spec in self.specs}
        self._bound: dict[UnitKey, torch.Tensor] = {}
        if seeds is not None:
            if key.is_first:
                seeds.attach(self.module.embedding, EMBEDDING_SLOT)
            for number, layer in enumerate(self.module.decoder.layers):
                seeds.attach(layer, key.first + number + 1)

    def bind(self, states: UnitStates) -> None:
        """Make every parameter a view into its unit's state; states bound before are left alone."""
        for spec in self.specs:
            state = states[spec.key]
            if self._bound.get(spec.key) is state.flat:
                continue
            for entry, view in state.views(WEIGHT):
                self._parameters[spec.unit, entry.name].data = view
            self._bound[spec.key] = state.flat

    def bind_gradients(self, views: dict[tuple[str, str], torch.Tensor]) -> None:
        """Make every parameter's gradient a view into the gradient buffers."""
        for key, parameter in self._parameters.items():
            parameter.grad = views[key]

    def hide_gradients(self, units: Collection[UnitKey]) -> None:
        """Have the next backward pass add nothing to the gradients of some units; see `bind_gradients`."""
        for (unit, _), parameter in self._parameters.items():
            if (unit, self.key.tensor_index) in units:
                parameter.grad = None

    def regroup(self, groups: ProcessGroupCollection) -> None:
        """Replace the groups of the epoch before wherever the model keeps them."""
        old, self._groups = self._groups, groups
        renewed = {id(group): getattr(groups, name) for name, group in vars(old).items() if group is not None}
        for module in self.module.modules():
            for name, value in list(vars(module).items()):
                if id(value) in renewed:
                    setattr(module, name, renewed[id(value)])
                elif value is old:
                    setattr(module, name, groups)


def transformer_config(task: TaskSettings, tensor: int, **changes: Any) -> TransformerConfig:
    """Megatron's own settings for a chunk.

    The pipeline degree stays 1 in them: what is left of Megatron's even-partition logic then does
    nothing. `num_layers` is the whole model's, because initial weights depend on it. `changes` are
    Megatron's own names (the plain loop that benchmarks compare with needs a pipeline degree).
    """
    model = task.model
    cpu = task.train.device == "cpu"
    values: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "kv_channels": model.kv_channels,
        "tensor_model_parallel_size": tensor,
        "add_bias_linear": model.add_bias_linear,
        "add_qkv_bias": model.add_qkv_bias,
        "gated_linear_unit": model.swiglu,
        "activation_func": torch.nn.functional.silu if model.swiglu else torch.nn.functional.gelu,
        "normalization": model.normalization,
        "layernorm_epsilon": model.norm_epsilon,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "init_method_std": model.init_method_std,
        # Weights come from `initial.py`, from a peer or from a checkpoint.
        "perform_initialization": False,
        "use_cpu_initialization": cpu,
        "params_dtype": torch.float32,
        "pipeline_dtype": torch.float32,
        # The loss is scaled by us, so that shares of micro-batches may differ between replicas.
        "calculate_per_token_loss": True,
        "masked_softmax_fusion": False,
        "bias_dropout_fusion": False,
        "gradient_accumulation_fusion": False,
        "batch_p2p_comm": False,
        "deallocate_pipeline_outputs": False,
    }
    return TransformerConfig(**{**values, **changes})


def _layers(task: TaskSettings, key: ChunkKey, config: TransformerConfig) -> TransformerBlockSubmodules:
    spec = get_gpt_layer_local_spec(normalization=task.model.normalization)
    layer = ModuleSpec(module=GlobalLayer, params={"first_layer": key.first}, submodules=spec.submodules)
    return TransformerBlockSubmodules(
        layer_specs=[layer] * (key.last - key.first + 1), layer_norm=WrappedTorchNorm
    )

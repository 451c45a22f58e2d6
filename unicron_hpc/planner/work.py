"""What one task asks of the hardware: the model, the batch and what the user fixed."""

from __future__ import annotations

from typing import Literal

import msgspec

from unicron_hpc.planner.hardware import Hardware

Recompute = Literal["none", "selective", "full"]


class TaskWork(msgspec.Struct, frozen=True, kw_only=True):
    """One training, as the planner sees it. Sizes carry Megatron's argument names.

    Attributes
    ----------
    name
        The task's name in plans and messages.
    num_layers, hidden_size, num_attention_heads, seq_length, vocab_size
        The GPT model.
    ffn_hidden_size, num_query_groups, kv_channels
        0 for Megatron's defaults: 4 x hidden, one group a head, hidden / heads.
    gated
        Whether the feed-forward part is gated (SwiGLU: three matrices instead of two).
    tied, learned_positions
        As in `units.units_of`.
    global_batch_size
        Sequences per iteration; never changes.
    micro_batch_size
        Sequences in a micro-batch; None lets the planner choose when the task starts.
    tensor, pipeline
        Degrees fixed by the user; None lets the planner choose. `pipeline` is a wish for the first layout:
        it is kept where all nodes find a seat in pipelines of that depth.
    recompute
        Activation recomputation: none, the attention core only, or whole layers.
    parameter_bytes, gradient_bytes, optimizer_bytes
        Bytes per parameter of weights, gradients and optimizer state (fp32 Adam: 4, 4, 8; bf16 with fp32
        main weights: 2, 4, 12).
    activation_bytes
        Bytes per activation element.
    distributed_optimizer
        Optimizer state sharded over replicas. The runtime cannot execute it yet; only memory is affected.
    weight, min_nodes
        The task's weight and least number of nodes in the allocation over tasks.
    hardware
        What runs it.
    """

    name: str = "train"
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    seq_length: int
    vocab_size: int
    global_batch_size: int
    ffn_hidden_size: int = 0
    num_query_groups: int = 0
    kv_channels: int = 0
    gated: bool = False
    tied: bool = True
    learned_positions: bool = True
    micro_batch_size: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    recompute: Recompute = "none"
    parameter_bytes: int = 4
    gradient_bytes: int = 4
    optimizer_bytes: int = 8
    activation_bytes: int = 4
    distributed_optimizer: bool = False
    weight: float = 1.0
    min_nodes: int = 1
    hardware: Hardware

    @property
    def ffn(self) -> int:
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def query_width(self) -> int:
        """Width of all attention heads together."""
        head = self.kv_channels or self.hidden_size // self.num_attention_heads
        return head * self.num_attention_heads

    @property
    def key_value_width(self) -> int:
        """Width of keys, or of values, of all query groups together."""
        return (
            self.query_width // self.num_attention_heads * (self.num_query_groups or self.num_attention_heads)
        )


class NodeSlots(msgspec.Struct, frozen=True, order=True):
    """A node that may be used: ranks it takes, and how slow it is (1.3 takes 30 % longer)."""

    name: str
    slots: int
    slowdown: float = 1.0

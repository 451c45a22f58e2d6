"""The sections of train.yaml other than `slurm:`; model and training use Megatron-LM's own argument names."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from unicron_hpc.config.fields import (
    Chosen,
    Count,
    CountOrZero,
    DrainReason,
    Fraction,
    Frozen,
    InputPath,
    NotNegative,
    OutputPath,
    Positive,
)
from unicron_hpc.errors import ConfigError

#: Tokens of the byte tokenizer: 256 bytes and the end of a document.
BYTE_TOKENS = 257
#: Vocabularies are padded to a multiple of this (Megatron's `make_vocab_size_divisible_by`), whatever the
#: tensor-parallel degree, so that a layout change never changes the model.
VOCAB_MULTIPLE = 128


def padded_vocab(tokens: int) -> int:
    """The vocabulary size for `tokens` tokens: the next multiple of `VOCAB_MULTIPLE`."""
    return -(-tokens // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _ffn_hidden_size(data: dict[str, Any]) -> int:
    """Megatron's default: four times the hidden size; two thirds of that, in steps of 64, with SwiGLU."""
    wide = 4 * int(data["hidden_size"])
    return max(64, int(wide * 2 / 3) // 64 * 64) if data["swiglu"] else wide


class ModelSettings(Frozen):
    """The GPT model, in Megatron-LM's words. Sizes count elements."""

    num_layers: Count
    """Transformer layers."""
    hidden_size: Count
    """Width of the model."""
    num_attention_heads: Count
    """Attention heads."""
    num_query_groups: Count = Field(default_factory=lambda data: int(data["num_attention_heads"]))
    """Key and value heads (grouped-query attention); `num_attention_heads` when left out."""
    kv_channels: Count = Field(
        default_factory=lambda data: max(1, int(data["hidden_size"]) // int(data["num_attention_heads"]))
    )
    """Width of one head; hidden_size / num_attention_heads when left out."""
    swiglu: bool = False
    """SwiGLU instead of GELU in the feed-forward block."""
    ffn_hidden_size: Count = Field(default_factory=_ffn_hidden_size)
    """Width of the feed-forward block; 4 x hidden_size when left out (2/3 of it with `swiglu`)."""
    seq_length: Count
    """Tokens in a sequence."""
    max_position_embeddings: Count = Field(default_factory=lambda data: int(data["seq_length"]))
    """Longest sequence that the position embedding knows; `seq_length` when left out."""
    vocab_size: Count = padded_vocab(BYTE_TOKENS)
    """Tokens, padding included; the byte tokenizer's 257 padded to a multiple of 128 when left out."""
    position_embedding_type: Literal["learned_absolute", "rope"] = "learned_absolute"
    """Kind of position embedding."""
    rotary_base: Positive = 10000.0
    """Base of the rotary embedding."""
    rotary_percent: Positive = 1.0
    """Part of each head that is rotated, above 0 up to 1."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """Kind of normalization."""
    norm_epsilon: Positive = 1e-5
    """Added to the variance in normalization."""
    untie_embeddings_and_output_weights: bool = False
    """Separate weights for embedding and output."""
    add_bias_linear: bool = True
    """Biases in linear layers."""
    add_qkv_bias: bool = False
    """Biases in the query, key and value projection even where `add_bias_linear` is false."""
    hidden_dropout: Fraction = 0.1
    """Dropout probability of hidden states."""
    attention_dropout: Fraction = 0.1
    """Dropout probability of attention weights."""
    init_method_std: Positive = 0.02
    """Standard deviation of initial weights."""

    @property
    def tied(self) -> bool:
        """Whether embedding and output share weights."""
        return not self.untie_embeddings_and_output_weights

    @property
    def learned_positions(self) -> bool:
        """Whether the model has a position embedding unit."""
        return self.position_embedding_type == "learned_absolute"


class TrainSettings(Frozen):
    """How it is trained, in Megatron-LM's words."""

    micro_batch_size: Chosen = None
    """Sequences in a micro-batch; `auto` lets the planner choose when the job is submitted, and it stays."""
    global_batch_size: Count
    """Sequences in an iteration, over all replicas; never changes, whatever nodes are lost."""
    train_iters: Count
    """Iterations."""
    lr: Positive
    """Highest learning rate."""
    min_lr: NotNegative = 0.0
    """Lowest learning rate after decay."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root"] = "linear"
    """How the learning rate falls."""
    lr_warmup_iters: CountOrZero = 0
    """Iterations over which the learning rate rises from 0."""
    lr_decay_iters: Count = Field(default_factory=lambda data: int(data["train_iters"]))
    """Iteration at which `min_lr` is reached; `train_iters` when left out."""
    weight_decay: NotNegative = 0.01
    """Weight decay (AdamW)."""
    adam_beta1: Fraction = 0.9
    """Decay of the first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of the second moment."""
    adam_eps: Positive = 1e-8
    """Added to the root of the second moment."""
    clip_grad: NotNegative = 1.0
    """Largest norm of the gradient over all weights; 0 for no clipping."""
    seed: CountOrZero = 1234
    """Seed of weights, sample order and dropout."""
    tensor_model_parallel_size: Chosen = None
    """Ranks that share each layer; `auto` lets the planner choose when the job is submitted, and it stays."""
    pipeline_model_parallel_size: Chosen = None
    """Stages of a pipeline at the start, if that gives all ranks a place; otherwise, and later on, the
    planner's choice."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where ranks compute. `cuda` has not been run on GPUs yet."""

    @property
    def fixed_micro_batch_size(self) -> int:
        """The micro-batch size, where it is known.

        Raises
        ------
        ConfigError
            When the planner has yet to choose it.
        """
        if self.micro_batch_size is None:
            raise ConfigError(
                "train.micro_batch_size has not been chosen", hint="submit the training with unicron-sbatch"
            )
        return self.micro_batch_size

    @property
    def micro_batches(self) -> int:
        """Micro-batches of an iteration, over all replicas."""
        return self.global_batch_size // self.fixed_micro_batch_size


class DataSettings(Frozen):
    """What it is trained on: exactly one of `text` and `path`."""

    text: InputPath | None = None
    """A text file; Megatron's indexed dataset is built from it."""
    path: InputPath | None = None
    """An existing indexed dataset: the path of its `.bin` and `.idx` without the ending."""
    tokenizer: Literal["byte"] = "byte"
    """How text becomes tokens: `byte` makes every byte one, and adds an end of document."""


class CheckpointSettings(Frozen):
    """Where and how often checkpoints are written."""

    dir: OutputPath
    """Folder, shared by all submissions of this training; `<run_dir>/checkpoints/<name>` when left out."""
    save_interval: CountOrZero = 100
    """Iterations between checkpoints; 0 for none but the last."""
    keep: Count = 2
    """Newest whole checkpoints that are kept."""
    resume: bool = True
    """Go on from the newest whole checkpoint in `dir`, if there is one."""


class RecoverySettings(Frozen):
    """When something counts as a fault, and how often we try again. Times in seconds."""

    heartbeat_interval: Positive = 0.5
    """Time between an agent's signs of life."""
    node_timeout: Positive = 2.0
    """Silence after which a node is lost."""
    iteration_failure_factor: Positive = 3.0
    """A rank that is stuck, or an iteration, for this many times its usual duration is a fault."""
    iteration_warning_factor: Positive = 1.1
    """A phase of a rank's work that begins to take this many times as long as before is a warning."""
    iteration_failure_floor: Positive = 5.0
    """Never a fault if all ranks wait for each other; first iterations and slow disks get six times this."""
    slow_node_factor: Positive = 1.1
    """A node whose ranks take this many times as long for their work as their like is planned as slow."""
    slow_node_out_factor: Positive = 1.5
    """A node that stays slower than this is taken out, if the task is faster without it."""
    slow_node_window: Positive = 60.0
    """How long a node must be slow before either happens."""
    startup_timeout: Positive = 300.0
    """How long the first agents and ranks may take to start."""
    transition_timeout: Positive = 60.0
    """How long one transition may take before it is tried again a level higher."""
    max_incidents: Count = 100
    """Incidents in a run after which it fails."""
    max_restarts_per_rank: Count = 3
    """Restarts of one rank without a committed iteration in between after which its node is bad."""
    max_retries: CountOrZero = 2
    """Attempts in place at the same error before it takes a new process."""
    max_faults_per_node: Count = 3
    """Incidents within `fault_window` in which processes of one node alone may fail; after that it is bad."""
    fault_window: Positive = 3600.0
    """How long a process fault counts against its node."""
    lost_together: Count = 3
    """Nodes silent at the same time for which the network is blamed: they are out, but none is drained."""
    min_nodes: Count = 1
    """Fewest nodes on which the job goes on."""
    quorum_timeout: Positive = 120.0
    """How long nodes that are no majority wait for slurmctld to say that the others are dead."""
    rules: InputPath | None = None
    """The site's own rules for what an error means, before the built-in ones; see docs/errors.md."""
    node_checks: Literal["off", "after_fault", "always"] = "after_fault"
    """When ranks test themselves and their connections as an epoch begins (some ms): after a fault only."""
    drain: bool = True
    """Ask Slurm to drain bad nodes."""
    drain_reason: DrainReason = "unicron: {kind} job {job} {time}"
    """Reason that Slurm keeps with a drained node; there are also `{node}` and `{rank}`."""
    exclude_for: NotNegative = 86400.0
    """How long later submissions leave a bad node out (`bad-nodes.json` in `run_dir`); 0 for not at all."""
    drills: bool = True
    """Let `unicron drill` make things fail on purpose in this job; only its owner can."""

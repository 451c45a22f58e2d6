"""Cost model: seconds and bytes of a layout on a described machine.

Sources of the formulas
-----------------------
[N21] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
      SC 2021: FLOPs of a layer and of the loss head (appendix), the 1F1B schedule.
[K22] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022: activation
      bytes of a layer (equations 1, 2, 6) and the FLOPs of selective recomputation.
[A22] Zheng et al., "Alpa", OSDI 2022, equation 2: a pipeline of uneven stages takes
      sum(t) + (micro-batches - 1) max(t).
[T05] Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005: a
ring
      all-reduce over n ranks takes 2 (n - 1) latency + 2 (n - 1) / n bytes / bandwidth.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from unicron_hpc.planner.layout import Layout, Replica
from unicron_hpc.planner.work import TaskWork

#: A number, or an array of them (the formulas do not care).
Number = Any

#: Share of device memory that a plan may fill; the rest is left to the framework and to fragmentation.
MEMORY_SHARE = 0.92
#: Order of the norm that joins the two bounds on a host with more ranks than cores.
CONTENTION = 2.0
#: Collectives in which a rank's gradients are summed (buckets), each with its own latency.
BUCKETS = 4


class StageCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and bytes of the pieces of a stage, for one tensor degree and micro-batch size.

    Attributes
    ----------
    layer, first, last, stage
        Seconds per micro-batch, forward, backward and recomputation: a layer, the embedding, the loss head,
        and what any stage costs on top.
    link_intra, link_inter
        Seconds per micro-batch that a stage boundary costs, activation and its gradient together.
    layer_parameters, first_parameters, last_parameters
        Parameters on one rank.
    layer_activation, last_activation
        Bytes kept on one rank for a micro-batch in flight.
    memory
        Bytes that a plan may use on a rank.
    state_bytes, sharded_bytes
        Bytes per parameter: weights, gradients and optimizer; and the part of them that replicas share out
        among each other (the optimizer's, where it is distributed).
    """

    layer: float
    first: float
    last: float
    stage: float
    link_intra: float
    link_inter: float
    layer_parameters: float
    first_parameters: float
    last_parameters: float
    layer_activation: float
    last_activation: float
    memory: float
    state_bytes: float
    sharded_bytes: float = 0.0

    def state_among(self, replicas: Number) -> Number:
        """Bytes per parameter on a rank, with that many replicas."""
        return self.state_bytes - self.sharded_bytes * (1 - 1 / replicas)


def layer_flops(work: TaskWork) -> tuple[float, float]:
    """Forward FLOPs of a layer for one sequence: (matrix products, attention core). [N21], general widths."""
    s, h = work.seq_length, work.hidden_size
    q, kv = work.query_width, work.key_value_width
    products = 2 * s * h * (q + 2 * kv) + 2 * s * q * h + 2 * s * h * work.ffn * (3 if work.gated else 2)
    return float(products), float(4 * s * s * q)


def model_flops(work: TaskWork) -> float:
    """FLOPs of an iteration that count as useful: forward and backward, no recomputation. [N21]"""
    products, core = layer_flops(work)
    head = 2 * work.seq_length * work.hidden_size * work.vocab_size
    return 3.0 * work.global_batch_size * (work.num_layers * (products + core) + head)


def parameters(work: TaskWork) -> tuple[float, float, float]:
    """Parameters of (a layer, what the first stage adds, what the last stage adds), before tensor slicing."""
    h, q, kv = work.hidden_size, work.query_width, work.key_value_width
    matrices = 3 if work.gated else 2
    layer = h * (q + 2 * kv) + q * h + matrices * h * work.ffn + (q + 2 * kv) + 6 * h + work.ffn
    first = h * work.vocab_size + (h * work.seq_length if work.learned_positions else 0)
    return float(layer), float(first), float(h * work.vocab_size + 2 * h)


def ring(ranks: Number, size: Number, bandwidth: float, latency: float) -> Number:
    """Seconds of a ring all-reduce of `size` bytes over `ranks` ranks; nothing for one rank. [T05]"""
    return 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * size / bandwidth


def stage_costs(work: TaskWork, tensor: int, micro_batch_size: int, slots: int) -> StageCosts:
    """Costs of the pieces of a stage.

    Parameters
    ----------
    work
        The task.
    tensor, micro_batch_size
        The degree and size to cost.
    slots
        Ranks that share one node's network.
    """
    machine, b, s, h = work.hardware, micro_batch_size, work.seq_length, work.hidden_size
    rate = machine.flops * machine.efficiency
    products, core = layer_flops(work)
    again = {"none": 0.0, "selective": core, "full": products + core}[work.recompute]
    passes = b * (3 * (products + core) + again) / tensor / rate
    hidden = float(b * s * h * work.activation_bytes)
    # [N21] section 2.3: two all-reduces forward and two backward per layer; full recomputation repeats the
    # first.
    collectives = (6 if work.recompute == "full" else 4) * ring(
        tensor, hidden, machine.intra_bandwidth, machine.intra_latency
    )
    head = 6 * b * s * h * work.vocab_size / tensor / rate
    layer_p, first_p, last_p = parameters(work)
    # [K22] equations 2 and 6, two-byte elements in the paper, and 2 s b h when whole layers are recomputed.
    width = work.activation_bytes / 2
    attention = 5 * work.num_attention_heads * s / h / tensor
    per_layer = {"none": 10 + 24 / tensor + attention, "selective": 10 + 24 / tensor, "full": 2.0}
    node_share = machine.inter_bandwidth / slots
    state = work.parameter_bytes + work.gradient_bytes + work.optimizer_bytes
    return StageCosts(
        layer=passes + collectives + machine.layer_seconds,
        # Look-up, its gradient and their write-back: three passes over the hidden state, bound by memory.
        first=3 * hidden / machine.memory_bandwidth,
        last=head + ring(tensor, b * s * 4.0, machine.intra_bandwidth, machine.intra_latency),
        stage=machine.stage_seconds,
        link_intra=machine.link_seconds + 2 * (machine.intra_latency + hidden / machine.intra_bandwidth),
        link_inter=machine.link_seconds + 2 * (machine.inter_latency + hidden / node_share),
        layer_parameters=layer_p / tensor,
        first_parameters=first_p / tensor,
        last_parameters=last_p / tensor,
        layer_activation=s * b * h * per_layer[work.recompute] * width,
        # [K22] section 4.3: logits in fp32 and their gradient.
        last_activation=8.0 * s * b * work.vocab_size / tensor,
        memory=machine.memory_bytes * MEMORY_SHARE,
        state_bytes=float(state),
        sharded_bytes=float(work.optimizer_bytes if work.distributed_optimizer else 0),
    )


def sync_seconds(work: TaskWork, parameters: Number, replicas: Number, slots: int, nodes: int) -> Number:
    """Seconds after the last micro-batch: gradient sum over `replicas`, optimizer step, fixed part.

    `parameters` is of the rank that holds most; numbers or arrays. [T05]; the optimizer reads and writes all
    state once.
    """
    machine = work.hardware
    crosses = nodes > 1
    bandwidth = machine.inter_bandwidth / slots if crosses else machine.intra_bandwidth
    latency = machine.inter_latency if crosses else machine.intra_latency
    total = ring(replicas, parameters * work.gradient_bytes, bandwidth, BUCKETS * latency)
    state = work.parameter_bytes + work.gradient_bytes + work.optimizer_bytes
    return (
        total * (1 - machine.overlap)
        + 2 * parameters * state / machine.memory_bandwidth
        + machine.iteration_seconds
    )


class Prediction(msgspec.Struct, frozen=True):
    """What the model expects of a layout.

    Attributes
    ----------
    iteration_seconds
        One iteration.
    pipeline_seconds
        Until the slowest replica has finished its micro-batches.
    sync_seconds
        Gradient sum, optimizer, fixed part.
    flops
        Useful FLOP/s of the whole task.
    memory_bytes
        Of the fullest rank.
    memory_limit
        What the plan may use on a rank.
    replica_seconds
        Pipeline seconds of each replica.
    """

    iteration_seconds: float
    pipeline_seconds: float
    sync_seconds: float
    flops: float
    memory_bytes: float
    memory_limit: float
    replica_seconds: tuple[float, ...]


def _stage_times(
    layout: Layout, replica: Replica, costs: StageCosts, slowdown: Mapping[str, float]
) -> tuple[list[float], list[float]]:
    """(seconds per micro-batch of each stage without links, seconds of each boundary)."""
    nodes = [layout.seats[stage.ranks[0]].node for stage in replica.stages]
    times = []
    for k, stage in enumerate(replica.stages):
        seconds = costs.stage + stage.num_layers * costs.layer
        seconds += costs.first if k == 0 else 0.0
        seconds += costs.last if k == len(replica.stages) - 1 else 0.0
        times.append(seconds * slowdown.get(nodes[k], 1.0))
    links = [
        costs.link_intra if here == there else costs.link_inter for here, there in itertools.pairwise(nodes)
    ]
    return times, links


def predict(layout: Layout, work: TaskWork, slowdown: Mapping[str, float] | None = None) -> Prediction:
    """Expected seconds, FLOP/s and memory of `layout`.

    Parameters
    ----------
    layout, work
        What runs.
    slowdown
        Measured factor per node name; absent means 1.
    """
    used = {seat.node for seat in layout.seats}
    per_node: dict[str, int] = {}
    for seat in layout.seats:
        per_node[seat.node] = per_node.get(seat.node, 0) + 1
    slots = max(per_node.values())
    costs = stage_costs(work, layout.tensor, layout.micro_batch_size, slots)
    seconds: list[float] = []
    memory = parameters_max = busy = held_by_all = 0.0
    seen: dict[tuple[object, ...], tuple[float, float, float, float]] = {}
    for replica in layout.replicas:
        times, links = _stage_times(layout, replica, costs, slowdown or {})
        key = (tuple(times), tuple(links), replica.micro_batches, tuple(s.num_layers for s in replica.stages))
        if key not in seen:
            beside = [max(pair) for pair in zip([0.0, *links], [*links, 0.0], strict=True)]
            slowest = max(t + link for t, link in zip(times, beside, strict=True))
            whole = sum(times) + sum(links) + (replica.micro_batches - 1) * slowest
            full, held = _replica_memory(replica, work, costs, len(layout.replicas))
            at_work = replica.micro_batches * (sum(times) + sum(links)) * layout.tensor
            seen[key] = (whole, full, held, at_work)
        whole, full, held, work_seconds = seen[key]
        seconds.append(whole)
        memory, parameters_max = max(memory, full), max(parameters_max, held)
        busy += work_seconds
        held_by_all += layout.tensor * pipeline_parameters(work, costs, len(replica.stages))
    pipeline = max(seconds)
    sync = sync_seconds(work, parameters_max, len(layout.replicas), slots, len(used))
    if work.hardware.host_cores is not None:
        mean = sync_seconds(work, held_by_all / layout.world_size, len(layout.replicas), slots, len(used))
        pipeline, sync = on_shared_host(
            work, layout.world_size, pipeline, busy, sync, mean * layout.world_size
        )
    return Prediction(
        pipeline + sync,
        pipeline,
        sync,
        model_flops(work) / (pipeline + sync),
        memory,
        costs.memory,
        tuple(seconds),
    )


def pipeline_parameters(work: TaskWork, costs: StageCosts, depth: int) -> float:
    """Parameters of all stages of a pipeline together; with tied weights its last stage has a copy."""
    last = 0.0 if work.tied and depth == 1 else costs.last_parameters
    return work.num_layers * costs.layer_parameters + costs.first_parameters + last


def on_shared_host(
    work: TaskWork, ranks: int, pipeline: float, busy: float, sync: float, sync_busy: float
) -> tuple[float, float]:
    """(pipeline, sync) seconds where all ranks share the cores of one host.

    With more ranks than cores no schedule can beat the sum of everybody's work over the cores, nor the time
    that it takes with a core for every rank; a real one comes near the larger where they differ much and
    stays above both where they are close: their norm of order `CONTENTION` (2 fitted measured layouts best).

    Parameters
    ----------
    work
        With a hardware description that has `host_cores`; others are left as they are.
    ranks
        Of the whole layout.
    pipeline, sync
        Seconds with a core for every rank.
    busy, sync_busy
        Seconds that all ranks together compute or copy, in either part.
    """
    cores = work.hardware.host_cores
    if cores is None or ranks <= cores:
        return pipeline, sync
    order = CONTENTION
    return (pipeline**order + (busy / cores) ** order) ** (1 / order), max(sync, sync_busy / cores)


def most_parameters(counts: Sequence[int], work: TaskWork, costs: StageCosts) -> float:
    """Parameters of the fullest rank of a pipeline with `counts` layers per stage."""
    held = [n * costs.layer_parameters for n in counts]
    held[0] += costs.first_parameters
    if len(counts) > 1 or not work.tied:
        held[-1] += costs.last_parameters
    return max(held)


def _replica_memory(
    replica: Replica, work: TaskWork, costs: StageCosts, replicas: int
) -> tuple[float, float]:
    """(bytes of the fullest rank, parameters of the rank that holds most)."""
    depth = len(replica.stages)
    fullest = most = 0.0
    for k, stage in enumerate(replica.stages):
        held = stage.num_layers * costs.layer_parameters
        held += costs.first_parameters if k == 0 else 0.0
        held += costs.last_parameters if k == depth - 1 and not (work.tied and depth == 1) else 0.0
        # 1F1B keeps depth - k micro-batches in flight on stage k. [N21] section 2.2
        flight = min(depth - k, replica.micro_batches)
        active = stage.num_layers * costs.layer_activation * flight
        active += costs.last_activation if k == depth - 1 else 0.0
        fullest, most = max(fullest, held * costs.state_among(replicas) + active), max(most, held)
    return fullest, most

"""Small tasks and machines for the tests."""

from __future__ import annotations

from hypothesis import strategies as st

from unicron_hpc.planner.hardware import Hardware
from unicron_hpc.planner.work import NodeSlots, TaskWork

MACHINE = Hardware(
    name="test",
    flops=1e12,
    efficiency=0.5,
    memory_bytes=1e9,
    memory_bandwidth=1e11,
    intra_bandwidth=1e11,
    intra_latency=1e-6,
    inter_bandwidth=1e10,
    inter_latency=1e-5,
    layer_seconds=1e-4,
    stage_seconds=1e-4,
    iteration_seconds=1e-3,
)


def small_work(**changes: object) -> TaskWork:
    """A 4-layer GPT, 8 sequences in micro-batches of 2, on `MACHINE` unless told otherwise."""
    values: dict[str, object] = {
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 64,
        "vocab_size": 256,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "tensor": 1,
        "hardware": MACHINE,
    }
    return TaskWork(**(values | changes))  # type: ignore[arg-type]


def nodes(count: int, slots: int = 1, slowdown: float = 1.0) -> list[NodeSlots]:
    return [NodeSlots(f"c{k}", slots, slowdown) for k in range(count)]


@st.composite
def works(draw: st.DrawFn, layers: int = 4, micro_batches: int = 5) -> TaskWork:
    """Tasks whose costs span compute-bound, network-bound and memory-bound."""
    machine = Hardware(
        name="drawn",
        flops=draw(st.sampled_from([1e10, 1e11, 1e12])),
        efficiency=0.5,
        memory_bytes=draw(st.sampled_from([4e6, 6e6, 8e6, 1e9])),
        memory_bandwidth=draw(st.sampled_from([1e9, 1e11])),
        intra_bandwidth=1e11,
        intra_latency=1e-6,
        inter_bandwidth=draw(st.sampled_from([1e7, 1e8, 1e10])),
        inter_latency=draw(st.sampled_from([1e-6, 1e-3])),
        layer_seconds=draw(st.floats(0, 1e-2)),
        stage_seconds=draw(st.floats(0, 1e-2)),
        iteration_seconds=1e-3,
        overlap=draw(st.sampled_from([0.0, 0.5])),
    )
    return TaskWork(
        num_layers=draw(st.integers(1, layers)),
        hidden_size=64,
        num_attention_heads=4,
        seq_length=draw(st.sampled_from([16, 64])),
        vocab_size=draw(st.sampled_from([128, 1024, 8192])),
        global_batch_size=2 * draw(st.integers(1, micro_batches)),
        micro_batch_size=2,
        tensor=1,
        tied=draw(st.booleans()),
        hardware=machine,
    )

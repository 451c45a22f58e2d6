"""Hardware descriptions: what a machine can do, as data (one JSON file a machine beside this one)."""

from __future__ import annotations

import importlib.resources

import msgspec

from unicron_hpc.errors import PlanError


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank's device and the links around it.

    Attributes
    ----------
    name
        The description's name; its file is `<name>.json`.
    source
        Where the figures come from.
    flops
        Peak dense FLOP/s of one rank's device in the training precision.
    efficiency
        Share of `flops` that a transformer layer reaches.
    memory_bytes
        Memory of one rank's device.
    memory_bandwidth
        Bytes per second between the device and its memory.
    intra_bandwidth, intra_latency
        Bytes per second and seconds between two ranks of a node, one direction.
    inter_bandwidth, inter_latency
        Bytes per second of a whole node's network, shared by its ranks, and seconds.
    layer_seconds
        Fixed seconds of a layer for each micro-batch, forward and backward together (kernel launches).
    stage_seconds
        Fixed seconds of a stage for each micro-batch (schedule, embedding look-up, loss).
    link_seconds
        Fixed seconds of a stage boundary for each micro-batch, activation and gradient together (hand-over
        between schedule, copies and transport on both sides).
    iteration_seconds
        Fixed seconds of an iteration (commit, data, logging).
    overlap
        Share of the gradient sum hidden behind the backward pass, 0 to 1.
    host_cores
        Cores shared by *all* ranks of the layout when they run on one oversubscribed host, as on a laptop;
        None where every rank has its device to itself.
    """

    name: str
    source: str = ""
    flops: float
    efficiency: float
    memory_bytes: float
    memory_bandwidth: float
    intra_bandwidth: float
    intra_latency: float
    inter_bandwidth: float
    inter_latency: float
    layer_seconds: float = 0.0
    stage_seconds: float = 0.0
    link_seconds: float = 0.0
    iteration_seconds: float = 0.0
    overlap: float = 0.0
    host_cores: float | None = None


def known() -> tuple[str, ...]:
    """Names of the descriptions that ship with the package, sorted."""
    files = importlib.resources.files(__name__).iterdir()
    return tuple(sorted(file.name[:-5] for file in files if file.name.endswith(".json")))


def hardware(name: str) -> Hardware:
    """The shipped description called `name`.

    Raises
    ------
    PlanError
        When there is none.
    """
    if name not in known():
        raise PlanError(f"no hardware description '{name}'", hint=f"known: {', '.join(known())}")
    text = importlib.resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    return msgspec.json.decode(text, type=Hardware)

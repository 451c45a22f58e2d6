"""Random numbers that depend on content only: never on ranks, layouts or what ran before.

A dropout mask follows from (seed, iteration, global micro-batch, layer). The generator is seeded anew at the
entry of every layer. Its 64-bit seed carries the micro-batch's base in the upper half, so that the layer
finds it there: also when activations are recomputed later, since recomputation first restores the generator.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import torch

_LOW = 0xFFFFFFFF
#: Slot of the embedding; layer k has slot k + 1.
EMBEDDING_SLOT = 0


def content_seed(*parts: int | str) -> int:
    """32 bits that follow from the parts alone, the same on every machine."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")


def mix(base: int, slot: int) -> int:
    """32 well-spread bits from a base and a small number (the finaliser of MurmurHash3)."""
    value = (base + slot * 0x9E3779B9) & _LOW
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _LOW
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _LOW
    return value ^ (value >> 16)


class DropoutSeeds:
    """Seeds one device's default generator for each micro-batch and layer."""

    def __init__(self, seed: int, generator: torch.Generator) -> None:
        self._seed = seed
        self._generator = generator

    def start(self, iteration: int, micro_batch: int) -> None:
        """A forward pass of this micro-batch begins."""
        base = content_seed(self._seed, iteration, micro_batch)
        self._generator.manual_seed(base << 32 | base)

    def attach(self, module: torch.nn.Module, slot: int) -> None:
        """Seed the generator whenever `module` is entered."""
        generator = self._generator

        def seed(_module: torch.nn.Module, _inputs: Any) -> None:
            base = generator.initial_seed() >> 32
            generator.manual_seed(base << 32 | mix(base, slot))

        module.register_forward_pre_hook(seed)

    @contextlib.contextmanager
    def branch(self, index: int) -> Any:
        """Another stream for the body, then back: what tensor rank `index` must draw on its own."""
        generator = self._generator
        saved = generator.get_state()
        now = generator.initial_seed()
        generator.manual_seed((now >> 32) << 32 | mix(now & _LOW, index + 1))
        try:
            yield
        finally:
            generator.set_state(saved)


class ContentTracker:
    """Takes the place of Megatron's tracker of GPU generators, whose states depend on the past.

    Megatron forks its tracker where tensor ranks must draw different numbers (attention dropout).
    """

    def __init__(self, seeds: DropoutSeeds | None, tensor_index: int, tensor: int) -> None:
        self._seeds = seeds if tensor > 1 else None
        self._tensor_index = tensor_index
        self._nothing = contextlib.nullcontext()

    def fork(self, *_: Any, **__: Any) -> Any:
        """A context in which this tensor rank's own numbers are drawn."""
        return self._nothing if self._seeds is None else self._seeds.branch(self._tensor_index)

    def is_initialized(self) -> bool:
        return True

    def get_states(self) -> dict[str, Any]:
        return {}

    def set_states(self, states: dict[str, Any]) -> None:
        """Nothing to restore: no state is kept."""

    def install(self) -> None:
        """Make Megatron use this tracker."""
        from megatron.core.tensor_parallel import random

        random._CUDA_RNG_STATE_TRACKER = self
        random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True

"""Megatron's exchange between pipeline stages, which says that it waits and what comes after."""

from __future__ import annotations

from typing import Any

from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from torch.distributed import ProcessGroup

from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.runtime.phase_page import PhaseMarks


class MarkedExchange(P2PCommunicator):  # type: ignore[misc]
    """A `P2PCommunicator` for the 1F1B schedule without interleaving.

    What was received last says what is computed next; who only sends goes on with what it sent.
    """

    def __init__(self, group: ProcessGroup, config: ModelParallelConfig, marks: PhaseMarks) -> None:
        super().__init__(group, config)
        self._marks = marks

    def _then(self, phase: WorkPhase, call: Any, *args: Any) -> Any:
        self._marks.enter(WorkPhase.EXCHANGE)
        result = call(*args)
        self._marks.enter(phase)
        return result

    def recv_forward(self, *args: Any) -> Any:
        return self._then(WorkPhase.FORWARD, super().recv_forward, *args)

    def recv_backward(self, *args: Any) -> Any:
        return self._then(WorkPhase.BACKWARD, super().recv_backward, *args)

    def send_forward(self, *args: Any) -> None:
        self._then(WorkPhase.FORWARD, super().send_forward, *args)

    def send_backward(self, *args: Any) -> None:
        self._then(WorkPhase.BACKWARD, super().send_backward, *args)

    def send_forward_recv_backward(self, *args: Any) -> Any:
        return self._then(WorkPhase.BACKWARD, super().send_forward_recv_backward, *args)

    def send_backward_recv_forward(self, *args: Any) -> Any:
        return self._then(WorkPhase.FORWARD, super().send_backward_recv_forward, *args)

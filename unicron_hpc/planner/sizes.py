"""Bytes of each unit's state, from the model's sizes alone."""

from __future__ import annotations

from unicron_hpc.planner.cost import parameters
from unicron_hpc.planner.units import FINAL_NORM, OUTPUT, POSITION_EMBEDDING, WORD_EMBEDDING, all_units
from unicron_hpc.planner.work import TaskWork


def unit_bytes(work: TaskWork, tensor: int) -> dict[str, int]:
    """Weights and optimizer state of one tensor slice of every unit; gradients are not moved.

    Sizes of small vectors are rounded as in `cost.parameters`; measured holdings replace them where there
    are any.
    """
    state = work.parameter_bytes + work.optimizer_bytes
    layer, _, _ = parameters(work)
    words = work.hidden_size * work.vocab_size
    special = {
        WORD_EMBEDDING: words / tensor,
        OUTPUT: words / tensor,
        POSITION_EMBEDDING: float(work.hidden_size * work.seq_length),
        FINAL_NORM: 2.0 * work.hidden_size,
    }
    units = all_units(work.num_layers, tied=work.tied, learned_positions=work.learned_positions)
    return {unit: int(special.get(unit, layer / tensor) * state) for unit in units}

"""The pieces in which a model's state is owned, moved and saved.

A *unit* is a named part of the model that is always whole on a rank (up to its tensor-parallel
slice): each transformer layer, the word embedding, the position embedding, the final norm and the
output projection. With tied embeddings the last stage holds the word embedding too, and no output unit.
"""

from __future__ import annotations

from collections.abc import Iterable

from unicron_hpc.planner.layout import Layout, Position

#: A unit's slice on a rank: its name and tensor index.
UnitKey = tuple[str, int]

WORD_EMBEDDING = "word_embedding"
POSITION_EMBEDDING = "position_embedding"
FINAL_NORM = "final_norm"
OUTPUT = "output"


def layer_unit(layer: int) -> str:
    """Name of the unit of transformer layer `layer` (global number, from 0)."""
    return f"layer.{layer}"


def units_of(position: Position, *, tied: bool, learned_positions: bool) -> tuple[str, ...]:
    """Units that the rank at `position` must hold, in model order.

    Parameters
    ----------
    position
        The rank's place in the layout.
    tied
        Whether embedding and output weights are shared (`untie_embeddings_and_output_weights` false).
    learned_positions
        Whether the model has a learned position embedding (`position_embedding_type: learned_absolute`).
    """
    units: list[str] = []
    if position.is_first:
        units.append(WORD_EMBEDDING)
        if learned_positions:
            units.append(POSITION_EMBEDDING)
    units.extend(layer_unit(k) for k in range(position.stage.first, position.stage.last + 1))
    if position.is_last:
        units.append(FINAL_NORM)
        if not tied:
            units.append(OUTPUT)
        elif not position.is_first:
            units.append(WORD_EMBEDDING)
    return tuple(units)


def holders(layout: Layout, *, tied: bool, learned_positions: bool) -> dict[UnitKey, tuple[int, ...]]:
    """For each (unit, tensor index): the ranks that hold it, ascending.

    Gradients of a unit are summed over exactly these ranks, which also makes them each other's peers.
    """
    found: dict[UnitKey, list[int]] = {}
    for position in layout.positions():
        for unit in units_of(position, tied=tied, learned_positions=learned_positions):
            found.setdefault((unit, position.tensor_index), []).append(position.rank)
    return {key: tuple(sorted(ranks)) for key, ranks in found.items()}


def all_units(num_layers: int, *, tied: bool, learned_positions: bool) -> Iterable[str]:
    """Every unit of a model, in model order."""
    yield WORD_EMBEDDING
    if learned_positions:
        yield POSITION_EMBEDDING
    for layer in range(num_layers):
        yield layer_unit(layer)
    yield FINAL_NORM
    if not tied:
        yield OUTPUT

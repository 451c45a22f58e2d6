"""The state that a process holds, and how it gets what its place in a new epoch needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.planner.movement import HeldUnit
from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime.attempt import Attempt
from unicron_hpc.runtime.faults import StateMismatch
from unicron_hpc.runtime.initial import initial_state
from unicron_hpc.runtime.migration import move_states
from unicron_hpc.runtime.orders import Rebuild
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.unit_map import UnitSpec
from unicron_hpc.runtime.unit_state import UnitState, UnitStates

#: Reads units from a checkpoint folder.
UnitLoader = Callable[[Path, Iterable[UnitSpec]], Iterable[UnitState]]


class Inventory:
    """Whole, checked unit states; whatever is only half here is not in it.

    Parameters
    ----------
    device
        Where they are.
    load_units
        Reads units from a checkpoint folder; None where that never happens.
    marks
        Where the rank says what it is doing.
    """

    def __init__(
        self, device: torch.device, load_units: UnitLoader | None, marks: PhaseMarks | None = None
    ) -> None:
        self._marks = marks or PhaseMarks()
        self._device = device
        self._load_units = load_units
        self._states: dict[UnitKey, UnitState] = {}

    @property
    def states(self) -> UnitStates:
        """(unit, tensor index) -> state."""
        return self._states

    def held(self) -> tuple[HeldUnit, ...]:
        """What is here, for the planner."""
        return tuple(
            HeldUnit(s.unit, s.tensor_index, s.tensor, s.iteration, _bytes(s)) for s in self._states.values()
        )

    def copy(self, keys: Collection[UnitKey]) -> dict[UnitKey, UnitState]:
        """Copies in host memory of the units in `keys`."""
        return {
            key: UnitState(
                s.unit,
                s.tensor_index,
                s.tensor,
                s.entries,
                s.flat.detach().to("cpu", copy=True),
                s.iteration,
            )
            for key, s in self._states.items()
            if key in keys
        }

    def keep_only(self, keys: Collection[UnitKey]) -> None:
        """Drop what has left this rank for good."""
        for key in [key for key in self._states if key not in keys]:
            del self._states[key]

    def bring(
        self,
        order: Rebuild,
        needed: Mapping[UnitKey, UnitSpec],
        config: TransformerConfig,
        seed: int,
        attempt: Attempt,
    ) -> dict[str, int]:
        """Have every needed unit here at the order's iteration; the world group must stand.

        What is here and not needed stays for now: the epoch may end before its first commit, and then
        the next plan may want it.

        Returns
        -------
        Bytes by source: `local`, `peer`, `disk`, `seed`.

        Raises
        ------
        StateMismatch
            When what the order relies on is not here or not what it should be.
        """

        def keep(state: UnitState) -> None:
            with attempt.counts():
                self._states[state.unit, state.tensor_index] = state

        sources = dict.fromkeys(("local", "peer", "disk", "seed"), 0)
        if order.checkpoint is not None:
            sources["disk"] = self._load(Path(order.checkpoint), needed.values(), keep)
        else:
            moved = {(move.unit, move.tensor_index) for move in order.moves if move.target == order.rank}
            sources["local"] = sum(
                _bytes(state) for key, state in self._states.items() if key in needed and key not in moved
            )
            sources["peer"] = move_states(
                order.moves,
                order.rank,
                self._states,
                needed,
                order.iteration,
                self._device,
                keep,
                self._marks,
            )
            if order.initial and order.iteration == 0:
                sources["seed"] = self._initialise(needed, config, seed, keep)
        for key, spec in needed.items():
            self._check(key, spec, order)
        with attempt.counts():
            for key in [key for key, state in self._states.items() if state.iteration != order.iteration]:
                del self._states[key]  # older than what all ranks agreed on: of no use to anybody
        return sources

    def send(self, order: Rebuild) -> None:
        """Send what the order says, and take nothing."""
        self._marks.take(WorkPhase.STATE)
        move_states(
            order.moves,
            order.rank,
            self._states,
            {},
            order.iteration,
            self._device,
            lambda _: None,
            self._marks,
        )
        self._marks.enter(WorkPhase.MOVE)

    def _initialise(
        self,
        needed: Mapping[UnitKey, UnitSpec],
        config: TransformerConfig,
        seed: int,
        keep: Callable[[UnitState], None],
    ) -> int:
        made = 0
        for key, spec in needed.items():
            held = self._states.get(key)
            self._marks.enter(WorkPhase.STATE)
            if held is None or held.iteration != 0:  # what others have lost begins anew everywhere
                state = initial_state(spec, config, seed, self._device)
                keep(state)
                made += _bytes(state)
        return made

    def _load(self, path: Path, specs: Iterable[UnitSpec], keep: Callable[[UnitState], None]) -> int:
        if self._load_units is None:
            raise StateMismatch(f"ordered to load {path}, but this rank has no loader")
        self._marks.enter(WorkPhase.LOAD)
        loaded = list(self._load_units(path, specs))
        self._marks.enter(WorkPhase.STATE)
        for state in loaded:
            state.flat = state.flat.to(self._device)
            keep(state)
        return sum(_bytes(state) for state in loaded)

    def _check(self, key: UnitKey, spec: UnitSpec, order: Rebuild) -> None:
        state = self._states.get(key)
        wanted = (order.iteration, spec.tensor, spec.entries)
        if state is not None and (state.iteration, state.tensor, state.entries) == wanted:
            return
        have = "nothing"
        if state is not None:
            have = f"slice {state.tensor_index} of {state.tensor} at iteration {state.iteration}"
        raise StateMismatch(
            f"{spec.unit}, slice {spec.tensor_index} of {spec.tensor}, is needed at iteration "
            f"{order.iteration}, but this rank holds {have}",
            where=f"rank {order.rank}",
        )


def _bytes(state: UnitState) -> int:
    return state.flat.numel() * state.flat.element_size()

"""What a rank's page says while state comes: its own work and its waits are told apart, unit by unit."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.planner.movement import Move
from unicron_hpc.runtime import inventory, migration
from unicron_hpc.runtime.attempt import Attempt
from unicron_hpc.runtime.inventory import Inventory
from unicron_hpc.runtime.orders import Rebuild
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.unit_state import UnitState

UNITS = ("layer.0", "layer.1")


def unit(name: str) -> UnitState:
    return UnitState(name, 0, 1, (), torch.ones(3, 4), 0)


class Spec(SimpleNamespace):
    """What moving and drawing need of a unit's description."""

    def state(self, flat: torch.Tensor, iteration: int) -> UnitState:
        return UnitState(self.unit, 0, 1, (), flat, iteration)


class Wire:
    """Messages between ranks of one process; notes each wait, with what the waiting rank's page says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.marks = PhaseMarks()
        self.marks.take(WorkPhase.STATE)
        self.seen: defaultdict[str, list[WorkPhase]] = defaultdict(list)
        self.sent: dict[int, torch.Tensor] = {}
        monkeypatch.setattr(migration, "_isend", self._send)
        monkeypatch.setattr(migration, "_irecv", self._receive)
        digest = UnitState.digest
        monkeypatch.setattr(UnitState, "digest", lambda state: (self.note("digest"), digest(state))[1])

    def note(self, what: str) -> None:
        self.seen[what].append(self.marks.doing.phase)

    def _send(self, tensor: torch.Tensor, target: int, tag: int) -> Any:
        self.sent[tag] = tensor.clone()
        return SimpleNamespace(wait=lambda: self.note("wait"))

    def _receive(self, tensor: torch.Tensor, source: int, tag: int) -> Any:
        return SimpleNamespace(wait=lambda: (self.note("wait"), tensor.copy_(self.sent[tag])))


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


def order(rank: int, **fields: Any) -> Rebuild:
    whole = Replica((Stage(0, 1, (0,)),), 0, 1)
    twice = (whole, Replica((Stage(0, 1, (1,)),), 1, 1))
    return Rebuild(1, rank, Layout(2, 1, 1, twice, (Seat("a", 0), Seat("b", 0))), 0, **fields)


def needed() -> Mapping[tuple[str, int], Any]:
    return {(name, 0): Spec(unit=name, tensor_index=0, tensor=1, entries=(), numel=4) for name in UNITS}


def held(store: Inventory) -> Inventory:
    for name in UNITS:
        store._states[name, 0] = unit(name)
    return store


MOVES = tuple(Move(name, 0, 0, 1, 48) for name in UNITS)


def test_who_moves_state_says_for_each_unit_whether_it_works_or_waits(wire: Wire) -> None:
    sender = held(Inventory(torch.device("cpu"), None, wire.marks))
    sender.send(order(0, moves=MOVES))
    assert wire.seen == {"digest": [WorkPhase.STATE] * 2, "wait": [WorkPhase.MOVE] * 4}
    assert wire.marks.doing.phase is WorkPhase.MOVE  # of what comes afterwards nothing is its own work

    wire.seen.clear()
    receiver = Inventory(torch.device("cpu"), None, wire.marks)
    receiver.bring(order(1, moves=MOVES), needed(), None, 1, Attempt())  # type: ignore[arg-type]
    assert wire.seen == {"digest": [WorkPhase.STATE] * 2, "wait": [WorkPhase.MOVE] * 4}
    assert wire.marks.doing.phase is WorkPhase.STATE
    assert receiver.states.keys() == needed().keys()


def test_who_draws_new_weights_moves_on_with_each_unit(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def drawn(spec: Any, config: Any, seed: int, device: torch.device) -> UnitState:
        counts.append(wire.marks._count)
        assert wire.marks.doing.phase is WorkPhase.STATE
        return unit(spec.unit)

    monkeypatch.setattr(inventory, "initial_state", drawn)
    store = Inventory(torch.device("cpu"), None, wire.marks)
    store.bring(order(0, initial=True), needed(), None, 1, Attempt())  # type: ignore[arg-type]
    assert len(counts) == len(UNITS)
    assert all(one < next_one for one, next_one in itertools.pairwise(counts))


def test_who_reads_a_checkpoint_says_so_for_that_has_no_limit(wire: Wire) -> None:
    def load(path: Path, specs: Iterable[Any]) -> list[UnitState]:
        wire.note("load")
        return [unit(spec.unit) for spec in specs]

    store = Inventory(torch.device("cpu"), load, wire.marks)
    store.bring(order(0, checkpoint="there"), needed(), None, 1, Attempt())  # type: ignore[arg-type]
    assert wire.seen == {"load": [WorkPhase.LOAD]}
    assert wire.marks.doing.phase is WorkPhase.STATE

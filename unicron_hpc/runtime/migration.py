"""State on its way between ranks: sent whole, checked before it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.planner.movement import Move
from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime.faults import StateMismatch
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.unit_map import UnitSpec
from unicron_hpc.runtime.unit_state import UnitState, UnitStates

#: Header: iteration, elements in a row, and the digest in two words.
_HEADER_WORDS = 4


@dataclass(frozen=True, slots=True)
class _Arriving:
    move: Move
    spec: UnitSpec
    header: torch.Tensor
    header_work: dist.Work


def move_states(
    moves: Sequence[Move],
    rank: int,
    held: UnitStates,
    needed: Mapping[UnitKey, UnitSpec],
    iteration: int,
    device: torch.device,
    arrived: Callable[[UnitState], None],
    marks: PhaseMarks,
) -> int:
    """Send and receive this rank's part of `moves` over the world group.

    Parameters
    ----------
    held
        State that this rank can send.
    needed
        Units that this rank may receive.
    iteration
        Committed iterations that moved state must contain.
    arrived
        Called with each unit once it is whole and checked.
    marks
        Where it says whether it works or waits, anew with each unit.

    Returns
    -------
    bytes received.

    Raises
    ------
    StateMismatch
        When a unit is not the one ordered: its iteration, its size or its digest differ.
    """
    outgoing = [(tag, move) for tag, move in enumerate(moves) if move.source == rank]
    incoming = [(tag, move) for tag, move in enumerate(moves) if move.target == rank]
    for _, move in outgoing:
        _check_source(move, held, iteration)
    arriving = {tag: _expect(tag, move, needed) for tag, move in incoming}
    sending: list[dist.Work] = []
    keep: list[torch.Tensor] = []
    for tag, move in outgoing:
        marks.enter(WorkPhase.STATE)
        state = held[move.unit, move.tensor_index]
        header = _header(state)
        payload = state.flat
        keep += [header, payload]
        sending += [_isend(header, move.target, 2 * tag), _isend(payload, move.target, 2 * tag + 1)]
    received = 0
    payloads: list[tuple[_Arriving, torch.Tensor, dist.Work]] = []
    for tag, item in arriving.items():
        marks.enter(WorkPhase.MOVE)
        item.header_work.wait()
        _check_header(item, iteration)
        flat = torch.empty(3, item.spec.numel, device=device)
        payloads.append((item, flat, _irecv(flat, item.move.source, 2 * tag + 1)))
    for item, flat, work in payloads:
        marks.enter(WorkPhase.MOVE)
        work.wait()
        marks.enter(WorkPhase.STATE)
        state = item.spec.state(flat, iteration)
        if _digest_words(state) != item.header[2:].tolist():
            raise StateMismatch(
                f"{item.move.unit} from rank {item.move.source} is damaged: the digests differ",
                where=f"rank {rank}",
            )
        arrived(state)
        received += flat.numel() * flat.element_size()
    marks.enter(WorkPhase.MOVE)
    for work in sending:
        work.wait()
    marks.enter(WorkPhase.STATE)
    return received


def _check_source(move: Move, held: UnitStates, iteration: int) -> None:
    state = held.get((move.unit, move.tensor_index))
    if state is None or state.iteration != iteration:
        have = "nothing" if state is None else f"iteration {state.iteration}"
        raise StateMismatch(
            f"ordered to send {move.unit} at iteration {iteration}, but this rank holds {have}",
            where=f"rank {move.source}",
        )


def _check_header(item: _Arriving, iteration: int) -> None:
    found_iteration, found_numel = item.header[:2].tolist()
    if (found_iteration, found_numel) != (iteration, item.spec.numel):
        raise StateMismatch(
            f"{item.move.unit} from rank {item.move.source} has iteration {found_iteration} and "
            f"{found_numel} elements; iteration {iteration} and {item.spec.numel} elements are needed",
            where=f"rank {item.move.target}",
        )


def _expect(tag: int, move: Move, needed: Mapping[UnitKey, UnitSpec]) -> _Arriving:
    spec = needed.get((move.unit, move.tensor_index))
    if spec is None:
        raise StateMismatch(
            f"ordered to receive {move.unit} (slice {move.tensor_index}), which this rank does not need",
            where=f"rank {move.target}",
        )
    header = torch.empty(_HEADER_WORDS, dtype=torch.int64)
    return _Arriving(move, spec, header, _irecv(header, move.source, 2 * tag))


def _header(state: UnitState) -> torch.Tensor:
    return torch.tensor([state.iteration, state.flat.shape[1], *_digest_words(state)], dtype=torch.int64)


def _digest_words(state: UnitState) -> list[int]:
    digest = state.digest()
    return [int.from_bytes(digest[at : at + 8], "little", signed=True) for at in (0, 8)]


def _isend(tensor: torch.Tensor, target: int, tag: int) -> dist.Work:
    work = dist.isend(tensor, dst=target, tag=tag)
    assert work is not None  # None only outside the group
    return work


def _irecv(tensor: torch.Tensor, source: int, tag: int) -> dist.Work:
    work = dist.irecv(tensor, src=source, tag=tag)
    assert work is not None
    return work

"""Where training goes on after a fault: what the survivors' reports add up to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from unicron_hpc.planner.layout import Seat
from unicron_hpc.planner.movement import HeldUnit
from unicron_hpc.planner.reuse import Reuse, plan_reuse
from unicron_hpc.runtime.orders import Committed, Holdings, PendingCommit, Phase, Rebuild


class Resume(msgspec.Struct, frozen=True):
    """What the survivors agree on.

    Attributes
    ----------
    iteration
        Committed iterations that all state has when training goes on; None when nobody holds any state.
    commit
        The update that ranks with complete gradients must still apply; None when there is none.
    units
        For each seat: the units that it holds at `iteration` (after `commit`).
    """

    iteration: int | None
    commit: PendingCommit | None
    units: dict[Seat, tuple[HeldUnit, ...]]


def resume_point(
    holdings: Mapping[Seat, Holdings],
) -> Resume:
    """Decide how far training has come.

    The furthest committed iteration of any survivor counts: a rank commits only after the world all-reduce
    of the gradient norm, to which every rank contributes only with complete gradient sums. So whoever is
    one iteration behind the furthest and has complete sums (`Phase.REDUCED`) can apply the same update.
    What is held says how far that is, not what a process has committed by itself: a new one may have got
    all its state and lost the peer that sent it before it took its place.

    Parameters
    ----------
    holdings
        Reports of the survivors.
    """
    states = [report for report in holdings.values() if report.units]
    if not states:
        return Resume(None, None, {})
    furthest = max(unit.iteration for report in states for unit in report.units)
    last = _record(holdings, furthest)
    commit = None
    usable: dict[Seat, tuple[HeldUnit, ...]] = {}
    for seat, report in holdings.items():
        units = {unit for unit in report.units if unit.iteration == furthest}
        behind = report.iteration == furthest - 1
        can_apply = behind and report.phase is Phase.REDUCED and report.pending_iteration == furthest
        if can_apply and last is not None:
            commit = PendingCommit.of(last)
            pending = set(report.pending_units)
            units |= {
                msgspec.structs.replace(unit, iteration=furthest)
                for unit in report.units
                if (unit.unit, unit.tensor_index) in pending and unit.iteration == furthest - 1
            }
        usable[seat] = tuple(sorted(units))
    return Resume(furthest, commit, usable)


def reusable(
    order: Rebuild, holdings: Mapping[Seat, Holdings], *, tied: bool, learned_positions: bool
) -> Mapping[int, Reuse]:
    """What each rank keeps of the next iteration, where that had begun; nobody anything if it starts anew.

    Parameters
    ----------
    order
        The order of the new epoch.
    holdings
        Reports of the survivors.
    tied, learned_positions
        As in `planner.units.units_of`.
    """
    if order.commit is not None or order.checkpoint is not None or order.initial:
        return {}
    reports = {rank: holdings[seat] for rank, seat in enumerate(order.layout.seats) if seat in holdings}
    plan = plan_reuse(
        {rank: report.unfinished for rank, report in reports.items() if report.unfinished is not None},
        order.layout,
        iteration=order.iteration + 1,
        tied=tied,
        learned_positions=learned_positions,
    )
    return plan or {}


def expendable(candidates: Iterable[Seat], units: Mapping[Seat, Collection[HeldUnit]]) -> list[Seat]:
    """Those that can go without taking the last copy of a unit along; who holds least goes first.

    Parameters
    ----------
    candidates
        Seats whose processes one would rather be without.
    units
        What every process holds, see `Resume`.
    """
    own = {seat: {(unit.unit, unit.tensor_index) for unit in held} for seat, held in units.items()}
    copies = Counter(key for keys in own.values() for key in keys)
    found = []
    for seat in sorted(candidates, key=lambda seat: (len(own.get(seat, ())), seat)):
        keys = own.get(seat, set())
        if all(copies[key] > 1 for key in keys):
            copies.subtract(keys)
            found.append(seat)
    return found


def _record(holdings: Mapping[Seat, Holdings], iteration: int) -> Committed | None:
    """Some rank's record of a committed iteration."""
    for report in holdings.values():
        for committed in report.recent:
            if committed.iteration == iteration:
                return committed
    return None

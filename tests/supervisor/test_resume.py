"""How far training has come, from what the survivors report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.supervisor.examples import few
from unicron_hpc.planner.holdings import HeldUnit
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.planner.reuse import Added, Reuse, Unfinished
from unicron_hpc.runtime.orders import Committed, Holdings, PendingCommit, Phase, Rebuild
from unicron_hpc.supervisor.resume import expendable, resume_point, reusable

SEATS = [Seat(f"n{number}", slot) for number in range(3) for slot in range(2)]
UNITS = ["embedding", "layer 0", "layer 1", "output"]


def committed(iteration: int) -> Committed:
    return Committed(iteration, 1 / iteration, 2.0 * iteration, 1e-3, 512, 0.1)


def unit(name: str, iteration: int, index: int = 0) -> HeldUnit:
    return HeldUnit(name, index, 1, iteration, 64)


def holds(
    iteration: int,
    *names: str,
    phase: Phase = Phase.COMPUTING,
    stale: tuple[HeldUnit, ...] = (),
    pending: tuple[str, ...] | None = None,
) -> Holdings:
    """What a rank that has committed `iteration` reports."""
    reduced = phase is Phase.REDUCED
    return Holdings(
        iteration=iteration,
        phase=phase,
        pending_iteration=0 if phase is Phase.IDLE else iteration + 1,
        units=tuple(unit(name, iteration) for name in names) + stale,
        recent=tuple(committed(n) for n in range(max(1, iteration - 3), iteration + 1)),
        pending_units=tuple((n, 0) for n in (names if pending is None else pending)) if reduced else (),
    )


@st.composite
def survivors(draw: st.DrawFn) -> dict[Seat, Holdings]:
    """Reports as they can occur: some at iteration i, some one behind in any phase, some new processes.

    Of the new ones some have got state already and were cut before they took their places.
    """
    now = draw(st.integers(1, 50))
    found: dict[Seat, Holdings] = {}
    for seat in draw(st.lists(st.sampled_from(SEATS), unique=True)):
        names = draw(st.lists(st.sampled_from(UNITS), unique=True))
        iteration = draw(st.sampled_from([now, now - 1])) if names else 0
        # Units that the layout before had here and that nobody has updated since.
        old = draw(st.lists(st.sampled_from(["layer 2", "layer 3"]), unique=True))
        stale = tuple(unit(name, draw(st.integers(0, iteration - 1))) for name in old if iteration > 0)
        phase = draw(st.sampled_from(Phase)) if names else Phase.IDLE
        pending = tuple(draw(st.lists(st.sampled_from(names), unique=True))) if names else None
        found[seat] = holds(iteration, *names, phase=phase, stale=stale, pending=pending)
        if draw(st.booleans()):
            got = tuple(unit(name, now) for name in names)
            found[seat] = msgspec.structs.replace(holds(0, phase=Phase.IDLE), units=got)
    return found


@few
@given(survivors())
def test_all_state_stands_at_one_iteration_and_it_is_the_furthest(reports: dict[Seat, Holdings]) -> None:
    resume = resume_point(reports)
    furthest = max((u.iteration for r in reports.values() for u in r.units), default=None)
    assert resume.iteration == furthest
    assert {u.iteration for units in resume.units.values() for u in units} <= {furthest}


@few
@given(survivors())
def test_a_unit_counts_only_where_it_is_held_up_to_date_or_can_be_brought_up_to_date(
    reports: dict[Seat, Holdings],
) -> None:
    resume = resume_point(reports)
    for seat, units in resume.units.items():
        report = reports[seat]
        for counted in units:
            earlier = msgspec.structs.replace(counted, iteration=counted.iteration - 1)
            by_update = (
                resume.commit is not None
                and report.phase is Phase.REDUCED
                and report.pending_iteration == resume.iteration
                and (counted.unit, counted.tensor_index) in report.pending_units
                and earlier in report.units
            )
            assert counted in report.units or by_update


@few
@given(survivors())
def test_what_is_held_up_to_date_is_never_left_out(reports: dict[Seat, Holdings]) -> None:
    resume = resume_point(reports)
    for seat, report in reports.items():
        assert {u for u in report.units if u.iteration == resume.iteration} <= set(resume.units.get(seat, ()))


@few
@given(survivors())
def test_an_update_is_applied_only_if_somebody_has_committed_it(reports: dict[Seat, Holdings]) -> None:
    resume = resume_point(reports)
    if resume.commit is not None:
        assert resume.commit == PendingCommit.of(committed(resume.commit.iteration))
        assert resume.commit.iteration == resume.iteration
        assert any(r.iteration == resume.iteration and r.units for r in reports.values())


def test_when_one_survivor_has_committed_all_with_complete_gradients_do() -> None:
    a, b, c = SEATS[:3]
    resume = resume_point(
        {
            a: holds(8, "layer 0"),
            b: holds(7, "layer 0", "layer 1", phase=Phase.REDUCED),
            c: holds(7, "layer 1", phase=Phase.COMPUTING),
        }
    )
    assert resume.iteration == 8
    assert resume.commit == PendingCommit.of(committed(8))
    assert resume.units == {a: (unit("layer 0", 8),), b: (unit("layer 0", 8), unit("layer 1", 8)), c: ()}


def test_when_none_has_committed_none_will_although_all_gradients_are_complete() -> None:
    a, b = SEATS[:2]
    resume = resume_point(
        {a: holds(7, "layer 0", phase=Phase.REDUCED), b: holds(7, "layer 1", phase=Phase.REDUCED)}
    )
    assert (resume.iteration, resume.commit) == (7, None)


def test_incomplete_gradients_bring_no_unit_forward_and_ask_for_no_update() -> None:
    a, b = SEATS[:2]
    resume = resume_point({a: holds(8, "layer 0"), b: holds(7, "layer 1", phase=Phase.COMPUTING)})
    assert resume.commit is None
    assert resume.units[b] == ()


def test_only_the_units_of_the_pending_update_come_forward() -> None:
    a, b = SEATS[:2]
    resume = resume_point(
        {
            a: holds(8, "layer 1"),
            b: holds(7, "layer 0", "embedding", phase=Phase.REDUCED, pending=("layer 0",)),
        }
    )
    assert resume.units[b] == (unit("layer 0", 8),)


def test_a_unit_kept_from_an_earlier_layout_is_not_taken_for_current() -> None:
    a, b = SEATS[:2]
    resume = resume_point({a: holds(8, "layer 0", stale=(unit("layer 3", 5),)), b: holds(8, "layer 1")})
    assert [held.unit for held in resume.units[a]] == ["layer 0"]


def test_state_counts_with_a_process_that_got_it_and_lost_its_sender_before_it_took_its_place() -> None:
    got = msgspec.structs.replace(holds(0, phase=Phase.IDLE), units=(unit("layer 0", 8), unit("layer 1", 8)))
    resume = resume_point({SEATS[0]: got})
    assert resume.iteration == 8
    assert resume.units == {SEATS[0]: got.units}


def test_new_processes_alone_have_nothing_to_go_on_from() -> None:
    resume = resume_point({SEATS[0]: holds(0, phase=Phase.IDLE)})
    assert (resume.iteration, resume.commit) == (None, None)
    assert resume_point({}).iteration is None


def test_a_rank_two_iterations_behind_cannot_apply_the_update() -> None:
    a, b = SEATS[:2]
    resume = resume_point({a: holds(9, "layer 0"), b: holds(7, "layer 1", phase=Phase.REDUCED)})
    assert resume.commit is None
    assert resume.units[b] == ()


def test_without_a_record_of_the_update_it_is_not_applied() -> None:
    a, b = SEATS[:2]
    silent = msgspec.structs.replace(holds(8, "layer 0"), recent=())
    resume = resume_point({a: silent, b: holds(7, "layer 1", phase=Phase.REDUCED)})
    assert resume.commit is None
    assert resume.units[b] == ()


@few
@given(survivors(), st.sets(st.sampled_from(SEATS)))
def test_whoever_can_go_leaves_a_copy_of_all_that_is_held_and_the_others_hold_a_last_one(
    reports: dict[Seat, Holdings], candidates: set[Seat]
) -> None:
    units = resume_point(reports).units
    gone = expendable(candidates, units)
    assert set(gone) <= candidates

    def held_without(*seats: Seat) -> set[str]:
        return {u.unit for seat, some in units.items() if seat not in seats for u in some}

    assert held_without(*gone) == held_without()
    for seat in candidates - set(gone):
        assert held_without(*gone, seat) != held_without()


class TestReusable:
    """What of an interrupted iteration goes on in the next epoch."""

    LAYOUT = Layout(
        num_layers=2,
        tensor=1,
        micro_batch_size=1,
        replicas=(Replica((Stage(0, 1, (0,)),), 0, 2), Replica((Stage(0, 1, (1,)),), 2, 2)),
        seats=(SEATS[0], SEATS[2]),
    )
    UNITS = ("word_embedding", "layer.0", "layer.1", "final_norm", "output")

    def order(self, **changes: Any) -> Rebuild:
        return Rebuild(**{"epoch": 3, "rank": 0, "layout": self.LAYOUT, "iteration": 6, **changes})

    def report(self, *micro_batches: int, iteration: int = 7) -> Holdings:
        sums = (Added(tuple((unit, 0) for unit in self.UNITS), micro_batches),)
        return msgspec.structs.replace(
            holds(6, *self.UNITS), unfinished=Unfinished(iteration, sums, micro_batches)
        )

    def found(self, order: Rebuild, holdings: dict[Seat, Holdings]) -> Mapping[int, Reuse]:
        return reusable(order, holdings, tied=False, learned_positions=False)

    def test_a_survivor_keeps_its_part_and_the_rest_is_shared(self) -> None:
        found = self.found(self.order(), {SEATS[0]: self.report(0, 1)})
        assert {rank: len(own.keep) for rank, own in found.items()} == {0: 5, 1: 0}
        assert found[0].run == found[1].run == ((2,), (3,))

    def test_who_has_no_seat_any_more_counts_for_nothing(self) -> None:
        assert self.found(self.order(), {SEATS[1]: self.report(0, 1)}) == {}

    def test_what_was_committed_meanwhile_or_rolled_back_is_not_reused(self) -> None:
        held = {SEATS[0]: self.report(0, 1)}
        assert self.found(self.order(commit=PendingCommit(7, 1.0, 1.0, 8)), held) == {}
        assert self.found(self.order(checkpoint="there", iteration=4), held) == {}
        assert self.found(self.order(), {SEATS[0]: self.report(0, 1, iteration=6)}) == {}

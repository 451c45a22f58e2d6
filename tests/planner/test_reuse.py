"""What an interrupted iteration leaves must add up: every micro-batch once to every unit."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from unicron_hpc.planner.layout import Layout, Position, Replica, Seat, Stage
from unicron_hpc.planner.reuse import Reuse, Unfinished, grouped, plan_reuse, unit_of, uses
from unicron_hpc.planner.units import WORD_EMBEDDING, UnitKey, holders, units_of

LAYERS = 4
ITERATION = 7


def layout_of(depths: list[int], shares: list[int], tensor: int = 1) -> Layout:
    """A replica for each depth, its layers as even as they get."""
    replicas, rank, start = [], 0, 0
    for depth, share in zip(depths, shares, strict=True):
        stages = []
        for stage in range(depth):
            first, last = LAYERS * stage // depth, LAYERS * (stage + 1) // depth - 1
            stages.append(Stage(first, last, tuple(range(rank, rank + tensor))))
            rank += tensor
        replicas.append(Replica(tuple(stages), start, share))
        start += share
    return Layout(LAYERS, tensor, 1, tuple(replicas), tuple(Seat(f"n{k}", 0) for k in range(rank)))


@dataclass
class Rank:
    """A simulated rank: which micro-batches its gradients are sums of, by use, how often each."""

    position: Position
    tied: bool
    sums: dict[UnitKey, Counter[int]] = field(default_factory=dict)
    losses: Counter[int] = field(default_factory=Counter)

    def units(self) -> list[str]:
        return list(units_of(self.position, tied=self.tied, learned_positions=True))

    def uses(self, unit: str) -> tuple[str, ...]:
        return uses(unit, first=self.position.is_first, last=self.position.is_last, tied=self.tied)

    def run(self, index: int, masked: frozenset[UnitKey] = frozenset(), *, counted: bool = False) -> None:
        t = self.position.tensor_index
        for unit in self.units():
            if (unit, t) not in masked:
                for use in self.uses(unit):
                    self.sums.setdefault((use, t), Counter())[index] += 1
        if self.position.is_last and t == 0 and not counted:
            self.losses[index] += 1

    def unfinished(self) -> Unfinished:
        return Unfinished(
            ITERATION,
            grouped({key: set(counts) for key, counts in self.sums.items()}),
            tuple(sorted(self.losses)),
        )


@dataclass
class World:
    """All ranks of a layout, and what each still has to run."""

    layout: Layout
    tied: bool
    reuse: dict[int, Reuse] | None = None
    ranks: dict[int, Rank] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = {p.rank: Rank(p, self.tied) for p in self.layout.positions()}

    def todo(self, rank: Rank) -> list[int]:
        replica = self.layout.replicas[rank.position.replica]
        if self.reuse is None:
            return list(range(replica.first_micro_batch, replica.first_micro_batch + replica.micro_batches))
        return list(self.reuse[rank.position.rank].run[rank.position.replica])

    def run(self, rank: Rank, indices: list[int]) -> None:
        for index in indices:
            if self.reuse is None:
                rank.run(index)
                continue
            order = self.reuse[rank.position.rank]
            masked = order.masked(
                index, first=rank.position.is_first, last=rank.position.is_last, tied=self.tied
            )
            rank.run(index, masked, counted=index in order.counted)

    def run_all(self) -> None:
        for rank in self.ranks.values():
            self.run(rank, self.todo(rank))

    def total(self) -> dict[UnitKey, Counter[int]]:
        found: dict[UnitKey, Counter[int]] = {}
        for rank in self.ranks.values():
            for key, counts in rank.sums.items():
                found.setdefault(key, Counter()).update(counts)
        return found

    def assert_complete(self) -> None:
        once = Counter(range(self.layout.micro_batches))
        wanted = {
            (use, rank.position.tensor_index)
            for rank in self.ranks.values()
            for unit in rank.units()
            for use in rank.uses(unit)
        }
        assert self.total() == dict.fromkeys(wanted, once)
        losses: Counter[int] = Counter()
        for rank in self.ranks.values():
            losses.update(rank.losses)
        assert losses == once

    def followed_by(self, layout: Layout, came_from: dict[int, int]) -> World:
        """The next epoch: `came_from` has for the new ranks that are old processes their old numbers."""
        reports = {new: self.ranks[old].unfinished() for new, old in came_from.items()}
        reuse = plan_reuse(reports, layout, iteration=ITERATION, tied=self.tied, learned_positions=True)
        after = World(layout, self.tied, reuse)
        for new, order in (reuse or {}).items():
            old = self.ranks[came_from[new]] if new in came_from else None
            assert old is not None or not (order.keep or order.losses)
            if old is None:
                continue
            rank = after.ranks[new]
            rank.sums = {
                (use, t): Counter(counts)
                for (use, t), counts in old.sums.items()
                if (unit_of(use), t) in order.keep
            }
            if order.losses:
                rank.losses = Counter(old.losses)
        return after


@st.composite
def layouts(draw: st.DrawFn, micro_batches: int, tensor: int) -> Layout:
    depths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=min(3, micro_batches)))
    cuts = draw(
        st.lists(
            st.integers(1, micro_batches - 1),
            min_size=len(depths) - 1,
            max_size=len(depths) - 1,
            unique=True,
        )
        if micro_batches > 1
        else st.just([])
    )
    edges = [0, *sorted(cuts), micro_batches]
    depths = depths[: len(edges) - 1]
    return layout_of(depths, [b - a for a, b in itertools.pairwise(edges)], tensor)


def interrupt(data: st.DataObject, world: World) -> None:
    """Break off in the midst of the passes, or of the sums."""
    if data.draw(st.booleans(), label="passes"):
        least = data.draw(st.integers(0, world.layout.micro_batches), label="all ranks ran")
        for rank in world.ranks.values():
            todo = world.todo(rank)
            world.run(rank, todo[: least + data.draw(st.integers(0, 2), label="ahead")])
        return
    world.run_all()
    total = world.total()
    for (unit, t), ranks in holders(world.layout, tied=world.tied, learned_positions=True).items():
        for number in ranks:
            if data.draw(st.booleans(), label="summed"):
                for use in uses(unit, first=True, last=True, tied=world.tied):
                    world.ranks[number].sums[use, t] = Counter(total[use, t])


@settings(deadline=None)
@given(st.data())
def test_what_is_kept_and_what_runs_again_add_up_to_every_micro_batch_once(data: st.DataObject) -> None:
    micro_batches, tensor = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 2))
    world = World(data.draw(layouts(micro_batches, tensor)), data.draw(st.booleans(), label="tied"))
    for _ in range(data.draw(st.integers(1, 3), label="faults")):
        interrupt(data, world)
        if data.draw(st.booleans(), label="same layout"):
            lost = data.draw(st.sets(st.sampled_from(sorted(world.ranks)), max_size=1))
            world = world.followed_by(world.layout, {n: n for n in world.ranks if n not in lost})
        else:
            layout = data.draw(layouts(micro_batches, tensor))
            pairs = list(zip(range(layout.world_size), sorted(world.ranks), strict=False))
            world = world.followed_by(layout, dict(pairs))
        event(f"reused: {world.reuse is not None}")
    world.run_all()
    world.assert_complete()


class TestAReplicaThatIsLost:
    """Two replicas of two stages, three micro-batches each."""

    def before(self) -> World:
        return World(layout_of([2, 2], [3, 3]), tied=True)

    def test_only_its_share_runs_again_where_the_other_is_done(self) -> None:
        world = self.before()
        for number in (0, 1):
            world.run(world.ranks[number], [0, 1, 2])
        world.run(world.ranks[3], [3])
        after = world.followed_by(layout_of([2], [6]), {0: 0, 1: 1})
        assert after.reuse is not None
        assert after.reuse[0].run == ((3, 4, 5),)

    def test_a_process_that_took_over_a_seat_runs_what_its_forerunner_ran(self) -> None:
        world = self.before()
        world.run_all()
        after = world.followed_by(world.layout, {0: 0, 1: 1, 3: 3})
        assert after.reuse is not None
        # The second replica's second stage has its gradients; they are not added again.
        assert after.reuse[0].redone == 3
        after.run_all()
        after.assert_complete()

    def test_micro_batches_in_flight_run_again_for_those_stages_only_that_had_not_come_to_them(self) -> None:
        world = self.before()
        world.run(world.ranks[0], [0])
        world.run(world.ranks[1], [0, 1])
        after = world.followed_by(layout_of([2], [6]), {0: 0, 1: 1})
        assert after.reuse is not None
        order = after.reuse[1]
        assert order.run == ((1, 2, 3, 4, 5),)
        assert {unit for unit, _ in order.masked(1, first=False, last=True, tied=True)} == set(
            after.ranks[1].units()
        )
        assert WORD_EMBEDDING not in {u for u, _ in order.masked(1, first=True, last=False, tied=True)}
        assert order.masked(2, first=False, last=True, tied=True) == frozenset()


def test_what_was_summed_needs_to_run_for_nobody() -> None:
    world = World(layout_of([2, 2], [3, 3]), tied=False)
    world.run_all()
    total = world.total()
    for number in (0, 1):
        rank = world.ranks[number]
        rank.sums = {key: Counter(total[key]) for key in rank.sums}
        rank.losses = Counter(range(6)) if number == 1 else Counter()
    after = world.followed_by(layout_of([2], [6]), {0: 0, 1: 1})
    assert after.reuse is not None
    assert after.reuse[0].redone == 0


def test_one_rank_for_both_ends_runs_no_micro_batch_of_which_a_tied_embedding_has_half() -> None:
    world = World(layout_of([2, 1], [2, 2]), tied=True)
    world.run(world.ranks[1], [0, 1])  # the last stage was ahead
    world.run(world.ranks[0], [0])
    world.run(world.ranks[2], [2, 3])
    assert world.followed_by(layout_of([1], [4]), {0: 2}).reuse is not None  # has only whole ones
    assert world.followed_by(layout_of([1, 1], [2, 2]), {0: 0, 1: 1}).reuse is None
    both = world.followed_by(layout_of([1, 2], [2, 2]), {0: 2, 1: 0, 2: 1}).reuse
    assert both is not None
    assert both[0].run == ((), (1,))


def test_another_iteration_is_of_no_use() -> None:
    world = World(layout_of([1], [2]), tied=False)
    world.run_all()
    report = world.ranks[0].unfinished()
    assert plan_reuse({0: report}, world.layout, iteration=8, tied=False, learned_positions=True) is None
    assert plan_reuse({}, world.layout, iteration=7, tied=False, learned_positions=True) is None

"""The slow node is named, whatever the layout and the noise, and its victims are not."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.stragglers import MODEL_MARGIN, REFERENCE, Comparison, OwnWork, Persistence, Slowness

few = settings(max_examples=60, deadline=None)

#: Layers of each stage, in every replica; and micro-batches of each replica.
layouts = st.tuples(
    st.lists(st.integers(1, 12), min_size=1, max_size=4), st.lists(st.integers(1, 6), min_size=1, max_size=4)
).filter(lambda layout: len(layout[0]) * len(layout[1]) >= 3)


def ranks(
    stages: list[int],
    shares: list[int],
    slow: dict[int, float],
    noise: random.Random,
    *,
    wrong: float = 0.0,
    spread: float = 0.04,
) -> list[OwnWork]:
    """Ranks one a node, by number; `wrong` is how far the cost model is off."""
    found = []
    for replica, share in enumerate(shares):
        for stage, layers in enumerate(stages):
            number = replica * len(stages) + stage
            last = stage == len(stages) - 1
            expected = share * (layers + (2.0 if last else 0.0))
            true = share * (layers + (2.0 + wrong if last else 0.0))
            seconds = true * slow.get(number, 1.0) * noise.uniform(1 - spread, 1 + spread)
            kind = (layers, stage == 0, last, share)
            found.append(OwnWork(f"n{number}", 0, kind, expected, seconds))
    return found


def slowest(found: dict[str, Slowness]) -> Slowness:
    return max(found.values(), key=lambda s: s.factor)


@few
@given(layouts, st.floats(2.0, 10.0), st.data())
def test_the_slow_node_is_named_in_any_layout(
    layout: tuple[list[int], list[int]], factor: float, data: st.DataObject
) -> None:
    """Here it becomes slow; one that always was is known by its like, or beyond the model's margin."""
    stages, shares = layout
    count = len(stages) * len(shares)
    culprit = data.draw(st.integers(0, count - 1))
    noise = random.Random(data.draw(st.integers(0, 2**32 - 1)))
    comparison = Comparison()
    for _ in range(REFERENCE):
        comparison.look(ranks(stages, shares, {}, noise))
    found = dict(comparison.look(ranks(stages, shares, {culprit: factor}, noise)))
    worst = slowest(found)
    assert worst.node == f"n{culprit}"
    assert 0.8 * factor <= worst.factor <= 1.2 * factor
    assert all(s.factor < 1.15 for node, s in found.items() if node != worst.node)


@few
@given(layouts, st.integers(0, 2**32 - 1), st.floats(0, 0.6))
def test_noise_and_a_model_that_is_off_name_nobody(
    layout: tuple[list[int], list[int]], seed: int, wrong: float
) -> None:
    stages, shares = layout
    noise = random.Random(seed)
    comparison = Comparison()
    for _ in range(2 * REFERENCE):
        found = comparison.look(ranks(stages, shares, {}, noise, wrong=wrong, spread=0.02))
        assert all(s.factor < 1.1 for s in found.values())


def test_without_its_like_a_rank_is_slow_beyond_the_models_margin_only() -> None:
    some = ranks([4, 6], [3], {0: 4.0}, random.Random(1), spread=0)
    found = Comparison().look(some)
    assert abs(found["n0"].factor - 4.0 / MODEL_MARGIN) < 1e-9
    assert found["n1"].factor == 1.0
    assert Comparison().look(ranks([4, 6], [3], {0: 1.4}, random.Random(1), spread=0))["n0"].factor == 1.0


def test_all_slow_alike_is_nobodys_fault_and_one_node_has_no_like() -> None:
    comparison = Comparison()
    for factor in [1.0] * REFERENCE + [3.0]:
        found = comparison.look(ranks([4, 6], [3], dict.fromkeys(range(2), factor), random.Random(1)))
    assert all(s.factor < 1.1 for s in found.values())
    (alone,) = Comparison().look(ranks([4], [1], {}, random.Random(1))).values()
    assert alone.factor == 1.0


def test_a_node_is_as_slow_as_its_slowest_rank_and_its_own_ranks_are_no_measure() -> None:
    seconds = {("a", 0): 1.0, ("a", 1): 2.0, ("b", 0): 1.0, ("b", 1): 1.0}
    some = [OwnWork(node, slot, "same", 1.0, s) for (node, slot), s in seconds.items()]
    found = Comparison().look(some)
    assert (found["a"].slot, found["a"].factor) == (1, 2.0)
    assert found["b"].factor < 1.0


# ---------------------------------------------------------------- for good


def seen(*factors: float, window: float = 60.0) -> Persistence:
    persistence = Persistence(window)
    for second, factor in enumerate(factors):
        persistence.note(float(second), factor)
    return persistence


def test_slowness_counts_when_it_lasts_a_whole_window() -> None:
    assert seen(*[1.0] * 30, *[2.0] * 40).lasting(1.1) is None
    assert seen(*[2.0] * 40).lasting(1.1) is None
    assert seen(*[1.0] * 30, *[2.0] * 61).lasting(1.1) == 2.0


@few
@given(st.lists(st.floats(1.0, 1.09), min_size=61, max_size=61), st.lists(st.integers(0, 60), max_size=14))
def test_single_outliers_are_no_lasting_slowness(factors: list[float], outliers: list[int]) -> None:
    for place in outliers:
        factors[place] = 50.0
    assert seen(*factors).lasting(1.1) is None


def test_it_is_over_when_most_of_a_window_was_fast() -> None:
    assert not seen(*[2.0] * 61).over(1.1)
    assert not seen(*[1.08] * 61).over(1.1)
    assert not seen(1.0, 1.0).over(1.1)
    assert seen(*[2.0] * 61, *[1.0] * 61).over(1.1)


def test_the_models_error_does_not_hold_a_node_slow_that_was_much_slower_before() -> None:
    """Nor does it make one well that never was slower by more than twice what it seems now."""
    much = seen(*[3.0] * 61)
    assert much.lasting(1.1) == 3.0
    much.found_slow(3.0)
    for second in range(61, 122):
        much.note(float(second), 1.19)
    assert much.over(1.1, exact=False)
    assert not much.over(1.1)
    little = seen(*[1.3] * 61)
    assert little.lasting(1.1) == 1.3
    little.found_slow(1.3)
    for second in range(61, 122):
        little.note(float(second), 1.19)
    assert not little.over(1.1, exact=False)
    assert seen(*[1.0] * 61).over(1.1, exact=False)


def test_what_was_learned_by_a_known_factor_is_no_exact_measure() -> None:
    """Two nodes without their like: what b should take is worked out by what is thought of it."""

    def now() -> list[OwnWork]:
        return [OwnWork("a", 0, "seven", 7.0, 7.0), OwnWork("b", 0, "five", 5.0, 5.0 * 1.12)]

    assumed, learned = Comparison(), Comparison()
    for _ in range(REFERENCE):
        assumed.look(now(), {"b": 1.12})
        learned.look(now())
    found = assumed.look(now(), {"b": 1.12})["b"]
    assert (found.exact, round(found.factor, 6)) == (False, 1.12)
    found = learned.look(now(), {"b": 1.12})["b"]
    assert (found.exact, found.factor) == (True, 1.0)
    assumed.forget("b")
    for _ in range(REFERENCE):
        assumed.look(now())
    assert assumed.look(now())["b"].exact


@few
@given(st.floats(1.15, 3.0), st.floats(0.9, 1.1))
def test_a_slow_node_is_as_slow_after_its_work_was_shared_anew(slow: float, off: float) -> None:
    """It is alone with a smaller share then; the model's margin would make it look fast."""
    shared = [OwnWork("a", 0, "less", 0.5, 0.5 * slow * off)]
    shared += [OwnWork(node, 0, "more", 1.0, 1.0) for node in "bc"]
    found = Comparison().look(shared)["a"]
    assert abs(found.given(slow) - min(slow, slow * off)) < 1e-9
    assert found.given(1.0) == found.factor == max(slow * off / MODEL_MARGIN, 1.0)


@few
@given(st.floats(1.2, 4.0), st.floats(0.7, 1.4))
def test_a_node_that_recovers_makes_no_other_look_slow_and_is_known_to_be_well(
    slow: float, off: float
) -> None:
    """Nobody has its like after the work was shared anew, and the model is off for each of them."""

    def now(factor: float) -> list[OwnWork]:
        seconds = {"a": 0.5 * factor, "b": 1.0 * off, "c": 1.2}
        expected = {"a": 0.5, "b": 1.0, "c": 1.2}
        return [OwnWork(node, 0, node, expected[node], seconds[node]) for node in "abc"]

    comparison = Comparison()
    for _ in range(REFERENCE):
        comparison.look(now(slow), {"a": slow})
    still = comparison.look(now(slow), {"a": slow})
    assert abs(still["a"].given(slow) - slow) < 1e-6 * slow
    well = comparison.look(now(1.0), {"a": slow})
    assert all(found.factor < 1 + 1e-6 for found in well.values())
    assert well["a"].given(slow) < 1 + 1e-6


def test_a_neighbour_that_was_slower_than_known_makes_nobody_slow_when_it_recovers() -> None:
    """Two nodes, ten micro-batches and two: n1 slows down to a fifth, of which only a third is known yet."""
    comparison, noise = Comparison(), random.Random(3)
    for _ in range(2 * REFERENCE):
        comparison.look(ranks([5], [10, 2], {1: 5.0}, noise), {"n1": 3.0})
    for _ in range(REFERENCE):
        found = comparison.look(ranks([5], [10, 2], {}, noise), {"n1": 3.0})
        assert found["n0"].factor < 1.1
    for _ in range(REFERENCE):  # while one that does become slower is still found
        found = comparison.look(ranks([5], [10, 2], {0: 3.0}, noise), {"n1": 1.0})
        assert found["n0"].factor > 1.5


def test_who_is_faster_beside_a_slow_node_is_not_slow_when_that_recovers() -> None:
    """They share a processor's caches, or a switch: what one does not use is the other's."""
    comparison = Comparison()
    for _ in range(2 * REFERENCE):
        comparison.look([OwnWork("a", 0, "ten", 10.0, 7.0), OwnWork("b", 0, "two", 2.0, 8.0)], {"b": 4.0})
    for _ in range(REFERENCE):
        well = [OwnWork("a", 0, "ten", 10.0, 10.0), OwnWork("b", 0, "two", 2.0, 2.0)]
        assert comparison.look(well, {"b": 4.0})["a"].factor == 1.0

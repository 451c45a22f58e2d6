"""Who stands out among the self-tests of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.self_tests import (
    DAMAGED_MESSAGE,
    FACTOR,
    LINK_MARGIN,
    PRODUCT_MARGIN,
    SLOW_LINK,
    SLOW_PRODUCT,
    WRONG_PRODUCT,
    Link,
    Results,
    judge,
)
from unicron_hpc.detect.severity import Severity
from unicron_hpc.runtime.self_test import partners

few = settings(max_examples=60, deadline=None)
#: Nodes, and ranks on each.
sizes = st.tuples(st.integers(3, 12), st.integers(1, 4))


def made(
    nodes: int,
    ranks: int,
    product: Callable[[int], float] = lambda rank: 0.001,
    link: Callable[[int, int], float] = lambda rank, peer: 0.0005,
    intact: Callable[[int, int], bool] = lambda rank, peer: True,
    wrong: frozenset[int] = frozenset(),
) -> Results:
    """Each node's ranks are numbered next to each other."""
    world = nodes * ranks
    return Results(
        nodes={rank: f"n{rank // ranks}" for rank in range(world)},
        products={rank: product(rank) for rank in range(world)},
        wrong=wrong,
        links=tuple(
            Link(rank, peer, link(rank, peer), intact(rank, peer))
            for rank in range(world)
            for peer in partners(rank, world)
        ),
    )


def found(tested: Results) -> list[tuple[tuple[str, ...], object]]:
    return [(suspect.nodes, suspect.finding) for suspect in judge(tested)]


@few
@given(sizes, st.integers(0, 2**32))
def test_noise_below_the_limit_names_nobody(size: tuple[int, int], seed: int) -> None:
    noise, values = Random(seed), dict[tuple[int, ...], float]()

    def noisy(*key: int) -> float:
        return values.setdefault(key, 0.001 * noise.uniform(1, FACTOR))

    assert judge(made(*size, product=noisy, link=noisy)) == []


@few
@given(sizes, st.data())
def test_a_node_on_which_all_products_are_slow_is_named(size: tuple[int, int], data: st.DataObject) -> None:
    nodes, ranks = size
    slow = data.draw(st.integers(0, nodes - 1))
    tested = made(nodes, ranks, product=lambda rank: 0.02 if rank // ranks == slow else 0.001)
    assert found(tested) == [((f"n{slow}",), SLOW_PRODUCT)]


def test_one_slow_rank_is_no_slow_node() -> None:
    assert judge(made(4, 2, product=lambda rank: 0.02 if rank == 3 else 0.001)) == []


def test_a_little_is_never_much_however_fast_the_others_are() -> None:
    least = PRODUCT_MARGIN
    assert judge(made(4, 1, product=lambda rank: least if rank == 3 else least / 1000)) == []
    least = LINK_MARGIN
    assert judge(made(4, 1, link=lambda rank, peer: least if {rank, peer} == {1, 3} else least / 1000)) == []


@few
@given(st.integers(2, 4), st.integers(1, 3), st.data())
def test_a_badly_connected_node_is_named_from_what_its_connections_have_in_common(
    power: int, ranks: int, data: st.DataObject
) -> None:
    nodes = 2**power
    bad = data.draw(st.integers(0, nodes - 1))

    def link(rank: int, peer: int) -> float:
        inside = rank // ranks == peer // ranks
        return 0.1 if bad in (rank // ranks, peer // ranks) and not inside else 0.0005

    assert found(made(nodes, ranks, link=link)) == [((f"n{bad}",), SLOW_LINK)]
    damaged = made(nodes, ranks, intact=lambda rank, peer: link(rank, peer) < 0.1)
    assert found(damaged) == [((f"n{bad}",), DAMAGED_MESSAGE)]


def test_one_bad_connection_names_both_ends() -> None:
    tested = made(4, 1, link=lambda rank, peer: 0.1 if {rank, peer} == {1, 3} else 0.0005)
    assert found(tested) == [(("n1", "n3"), SLOW_LINK)]


def test_a_node_that_is_well_connected_to_somebody_is_not_named_alone() -> None:
    tested = made(8, 1, link=lambda rank, peer: 0.1 if {rank, peer} in ({0, 1}, {0, 2}) else 0.0005)
    assert found(tested) == [(("n0", "n1", "n2"), SLOW_LINK)]
    only = made(3, 1, link=lambda rank, peer: 0.1 if {rank, peer} == {0, 1} else 0.0005)
    assert found(only) == [(("n0", "n1"), SLOW_LINK)]


def test_a_network_that_is_slow_everywhere_names_nobody() -> None:
    assert judge(made(4, 1, link=lambda rank, peer: 0.1)) == []
    assert judge(made(8, 1, link=lambda rank, peer: 0.1 if rank + peer > 4 else 0.0005)) == []


def test_a_wrong_product_names_its_node_alone_and_takes_it_out() -> None:
    (suspect,) = judge(made(2, 2, wrong=frozenset({3})))
    assert (suspect.nodes, suspect.finding) == (("n1",), WRONG_PRODUCT)
    assert suspect.finding.severity is Severity.SEV1


def test_what_is_damaged_inside_a_node_is_that_nodes() -> None:
    tested = made(4, 2, intact=lambda rank, peer: {rank, peer} != {2, 3})
    assert found(tested) == [(("n1",), DAMAGED_MESSAGE)]


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_nodes_are_not_compared(nodes: int) -> None:
    tested = made(
        nodes, 1, product=lambda rank: 1.0 if rank else 0.001, link=lambda rank, peer: 0.1 if rank else 0.001
    )
    assert judge(tested) == []

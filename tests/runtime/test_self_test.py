"""The test of ranks and connections between two epochs, with real ranks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.ranks import World, layout, small_task
from unicron_hpc.runtime import self_test as module
from unicron_hpc.runtime.orders import Exchange
from unicron_hpc.runtime.self_test import partners, self_test

TASK = small_task()
FOUR = layout(TASK, [2, 2], [2, 2])


@given(st.integers(1, 70))
def test_whom_a_rank_meets_meets_it_in_the_same_round_and_all_are_connected(world_size: int) -> None:
    meetings = [partners(rank, world_size) for rank in range(world_size)]
    reached, news = {0}, {0}
    while news:
        news = {peer for rank in news for peer in meetings[rank]} - reached
        reached |= news
    assert reached == set(range(world_size))
    for rank, peers in enumerate(meetings):
        assert all(rank in meetings[peer] for peer in peers)
        assert [rank ^ peer for peer in peers] == sorted(rank ^ peer for peer in peers)


def test_a_rank_alone_tests_its_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = self_test(None, 0, 1, torch.device("cpu"))  # type: ignore[arg-type]  # nobody to meet
    assert alone.right
    assert alone.exchanges == ()
    multiply = torch.Tensor.__matmul__

    def slightly_wrong(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        product = multiply(left, right)
        if product.dim() == 2:
            product[3, 5] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", slightly_wrong)
    assert not self_test(None, 0, 1, torch.device("cpu")).right  # type: ignore[arg-type]


def test_ranks_meet_their_partners_a_damaged_message_is_noticed_and_a_cut_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, exchange, stuck = module._pattern, module._exchange, tmp_path / "stuck"

    def damaging(rank: int, count: int) -> torch.Tensor:
        sent = pattern(rank, count)
        return sent + 1 if rank == 3 and module_rank[0] == 3 else sent

    def sticking(group: object, rank: int, peer: int) -> Exchange:
        module_rank[0] = rank
        while rank == 2 and stuck.exists():
            time.sleep(0.01)
        return exchange(group, rank, peer)  # type: ignore[arg-type]

    module_rank = [-1]
    monkeypatch.setattr(module, "_pattern", damaging)
    monkeypatch.setattr(module, "_exchange", sticking)
    world = World(TASK, tmp_path / "store")
    try:
        world.start(FOUR)
        tests = [report.self_test for report in world.rebuild(FOUR, self_test=True)]
        assert [[e.peer for e in test.exchanges] for test in tests] == [[1, 2], [0, 3], [3, 0], [2, 1]]
        assert [[e.intact for e in test.exchanges] for test in tests] == [
            [True, True], [True, False], [False, True], [True, True],
        ]  # fmt: skip
        assert all(test.right and 0 < test.gemm_seconds < test.seconds for test in tests)
        stuck.touch()
        world.send_rebuild(FOUR, self_test=True)
        for rank in (0, 1, 3):
            world.ranks[rank].send("cut_when_testing", world.epoch + 1)
        for rank in (0, 1, 3):
            assert world.ranks[rank].answer().error in ("GroupsCut", "PeerLost", "WorkLeftBehind")
    finally:
        world.close()

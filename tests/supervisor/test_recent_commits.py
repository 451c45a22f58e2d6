"""An agent's short memory of commits."""

from __future__ import annotations

from unicron_hpc.planner.layout import Seat
from unicron_hpc.runtime.orders import Committed
from unicron_hpc.supervisor.rank_messages import RankAddress
from unicron_hpc.supervisor.recent_commits import MEMORY, RecentCommits


def committed(iteration: int, loss: float = 1.0) -> Committed:
    return Committed(iteration, loss, 2.0, 1e-3, 512, 0.1)


def rank(slot: int, incarnation: int = 1, task: str = "train") -> RankAddress:
    return RankAddress(task, Seat("n1", slot), incarnation)


def numbers(records: tuple[tuple[str, int, Committed], ...]) -> list[tuple[str, int, int]]:
    return [(task, epoch, commit.iteration) for task, epoch, commit in records]


def test_the_first_rank_to_tell_of_an_iteration_is_the_one_that_counts() -> None:
    commits = RecentCommits()
    commits.add("train", 1, committed(1, loss=0.5))
    commits.add("train", 1, committed(1, loss=0.6))
    ((_, _, kept),) = commits.all()
    assert kept.loss == 0.5


def test_an_iteration_committed_again_in_a_later_epoch_replaces_the_earlier() -> None:
    commits = RecentCommits()
    commits.add("train", 1, committed(1))
    commits.add("train", 3, committed(1))
    commits.add("train", 2, committed(1))
    assert numbers(commits.all()) == [("train", 3, 1)]


def test_only_so_many_are_remembered_and_the_newest_are_repeated() -> None:
    commits = RecentCommits()
    for n in range(1, MEMORY + 11):
        commits.add("train", 1, committed(n))
    commits.add("other", 1, committed(1))
    assert numbers(commits.all())[0] == ("train", 1, 11)
    assert len(commits.all()) == MEMORY + 1
    assert numbers(commits.fresh(3)) == [
        ("train", 1, MEMORY + 8),
        ("train", 1, MEMORY + 9),
        ("train", 1, MEMORY + 10),
        ("other", 1, 1),
    ]


def test_after_a_roll_back_the_newest_are_those_committed_last() -> None:
    """A heartbeat repeats them so that a lost message loses nothing; old ones there would crowd them out."""
    commits = RecentCommits()
    for n in range(1, 21):
        commits.add("train", 1, committed(n))
    for n in (11, 12):
        commits.add("train", 2, committed(n))
    assert numbers(commits.fresh(2)) == [("train", 2, 11), ("train", 2, 12)]


def test_one_rank_of_a_node_and_task_speaks_for_the_others() -> None:
    commits = RecentCommits()
    assert commits.speaks_for(rank(1))
    assert commits.speaks_for(rank(0))  # from now on the lower slot
    assert not commits.speaks_for(rank(1))
    assert commits.speaks_for(rank(0, incarnation=2))
    assert commits.speaks_for(rank(1, task="other"))

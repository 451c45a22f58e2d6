"""Who may decide: the majority, or exactly half of the members where slurmctld sides with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.supervisor.events import within
from tests.supervisor.examples import few
from unicron_hpc.supervisor.quorum import ANSWER_LASTS, ASK_INTERVAL, Quorum, Right

FOUR = ["n1", "n2", "n3", "n4"]
LIMIT = 30.0
#: Any time by which slurmctld may be asked for the first time.
NOW = 1000.0


class Slurmctld:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, *lost: str) -> None:
        self.lost = set(lost)
        self.asked: list[Sequence[str]] = []

    def __call__(self, nodes: Sequence[str]) -> bool:
        self.asked.append(nodes)
        return set(nodes) <= self.lost


async def answered() -> None:
    """Wait until every question to slurmctld has its answer."""
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


def on_slurm(witness: Callable[[Sequence[str]], bool], members: Collection[str] = FOUR) -> Quorum:
    return Quorum(members, witness, LIMIT)


def test_more_than_half_go_on_without_asking_anybody() -> None:
    slurmctld = Slurmctld()
    assert on_slurm(slurmctld).judge(["n1", "n2", "n3"], NOW) is Right.GO_ON
    assert slurmctld.asked == []


def test_half_may_go_on_once_slurmctld_has_lost_all_the_others() -> None:
    async def work() -> None:
        slurmctld = Slurmctld("n3", "n4")
        quorum = on_slurm(slurmctld)
        assert quorum.judge(["n1", "n2"], NOW) is Right.STOP
        await answered()
        assert slurmctld.asked == [["n3", "n4"]]
        assert quorum.judge(["n1", "n2"], NOW + 1) is Right.GO_ON
        assert not quorum.short

    within(work())


def test_half_may_not_go_on_while_slurmctld_hears_one_of_the_others() -> None:
    async def work() -> None:
        quorum = on_slurm(Slurmctld("n3"))
        quorum.judge(["n1", "n2"], NOW)
        await answered()
        assert quorum.judge(["n1", "n2"], NOW + ASK_INTERVAL) is Right.WAIT
        await answered()
        assert quorum.judge(["n1", "n2"], NOW + LIMIT) is Right.WAIT
        quorum.close()

    within(work())


def test_slurmctld_is_asked_again_but_not_at_every_look() -> None:
    async def work() -> None:
        slurmctld = Slurmctld()
        quorum = on_slurm(slurmctld)
        for tenth in range(int(ASK_INTERVAL * 10) + 1):
            quorum.judge(["n1", "n2"], NOW + tenth / 10)
            await answered()
        assert len(slurmctld.asked) == 2
        slurmctld.lost = {"n3", "n4"}
        quorum.judge(["n1", "n2"], NOW + 3 * ASK_INTERVAL)
        await answered()
        assert quorum.judge(["n1", "n2"], NOW + 3 * ASK_INTERVAL) is Right.GO_ON

    within(work())


@few
@given(st.integers(1, 20), st.data())
def test_fewer_than_half_never_go_on_whatever_slurmctld_says(count: int, data: st.DataObject) -> None:
    members = [f"n{number}" for number in range(count)]
    few_of_them = data.draw(st.lists(st.sampled_from(members), max_size=(count - 1) // 2, unique=True))
    slurmctld = Slurmctld(*members)

    async def work() -> None:
        quorum = on_slurm(slurmctld, members)
        for second in (0.0, 3.0, 6.0, LIMIT + 10):
            assert quorum.judge(few_of_them, NOW + second) is not Right.GO_ON
            await answered()
        assert slurmctld.asked == []  # its word would change nothing

    within(work())


@few
@given(st.lists(st.sampled_from("ab-"), min_size=1, max_size=8), st.data())
def test_two_sides_of_a_cut_network_never_both_go_on(sides: list[str], data: st.DataObject) -> None:
    """`-` is dead; slurmctld is in contact with any of the living, be they on one side or on both."""
    names = [f"n{number}" for number in range(len(sides))]
    living = [name for name, side in zip(names, sides, strict=True) if side != "-"]
    in_contact = set(data.draw(st.lists(st.sampled_from(living), unique=True))) if living else set()

    async def goes_on(side: str) -> bool:
        ours = [name for name, where in zip(names, sides, strict=True) if where == side]
        if not ours:
            return False
        asker = data.draw(st.sampled_from(ours))
        quorum = on_slurm(
            lambda missing: asker in in_contact and in_contact.isdisjoint(missing),  # as the agent asks
            names,
        )
        rights = set()
        for look in range(4):
            heard = data.draw(st.lists(st.sampled_from(ours), unique=True)) if look < 2 else ours
            rights.add(quorum.judge(heard, NOW + look * ASK_INTERVAL))
            await answered()
        return Right.GO_ON in rights

    async def work() -> None:
        assert [await goes_on("a"), await goes_on("b")] != [True, True]

    within(work())


def test_a_minority_stops_once_then_waits_and_gives_up_after_its_limit() -> None:
    quorum = on_slurm(Slurmctld())
    assert not quorum.short
    rights = [quorum.judge(["n1"], NOW + after) for after in (0.0, 1.0, LIMIT, LIMIT + 0.1)]
    assert rights == [Right.STOP, Right.WAIT, Right.WAIT, Right.GIVE_UP]
    assert quorum.short


def test_a_minority_that_others_come_back_to_goes_on_and_has_its_whole_limit_next_time() -> None:
    quorum = on_slurm(Slurmctld())
    quorum.judge(["n1"], NOW)
    assert quorum.judge(["n1", "n2", "n3"], NOW + LIMIT) is Right.GO_ON
    assert not quorum.short
    assert quorum.judge(["n1"], NOW + LIMIT + 1) is Right.STOP
    assert quorum.judge(["n1"], NOW + LIMIT + 2) is Right.WAIT


def test_only_a_commit_changes_the_membership_that_is_counted() -> None:
    quorum = on_slurm(Slurmctld())
    assert quorum.judge(["n1", "n2", "n3"], NOW) is Right.GO_ON
    assert quorum.committed == set(FOUR)
    assert quorum.judge(["n1"], NOW) is Right.STOP  # one of four, not one of three
    quorum.commit(["n1", "n2", "n3"])
    assert quorum.judge(["n1", "n2"], NOW) is Right.GO_ON  # two of three


def test_whether_some_would_be_enough_is_told_without_asking_or_stopping() -> None:
    async def work() -> None:
        slurmctld = Slurmctld("n3", "n4")
        quorum = on_slurm(slurmctld)
        assert quorum.enough(["n1", "n2", "n3"])
        assert not quorum.enough(["n1", "n2"])
        assert not quorum.short
        assert slurmctld.asked == []
        quorum.judge(["n1", "n2"], NOW)
        await answered()
        assert quorum.enough(["n1", "n2"])
        assert not quorum.enough(["n1"])

    within(work())


def test_who_is_no_member_does_not_count() -> None:
    quorum = on_slurm(Slurmctld())
    quorum.commit(["n1", "n2", "n3"])
    assert quorum.judge(["n1", "n4", "n5", "n6"], NOW) is Right.STOP


def test_an_answer_counts_for_the_tie_that_it_was_asked_for_and_not_for_a_later_one() -> None:
    async def work() -> None:
        slurmctld = Slurmctld("n3", "n4")
        quorum = on_slurm(slurmctld)
        quorum.judge(["n1", "n2"], NOW)
        await answered()
        slurmctld.lost = set()
        assert quorum.judge(FOUR, NOW + 1) is Right.GO_ON  # they are back
        later = NOW + 1 + ANSWER_LASTS
        assert quorum.judge(["n1", "n2"], later) is Right.STOP
        await answered()
        assert quorum.judge(["n1", "n2"], later + 1) is Right.WAIT

    within(work())


def test_an_answer_about_some_of_the_missing_is_none_about_all_of_them() -> None:
    async def work() -> None:
        quorum = on_slurm(Slurmctld("n3", "n4"))
        quorum.judge(["n1", "n2"], NOW)
        await answered()
        assert quorum.judge(["n1", "n3"], NOW + 0.1) is Right.WAIT  # n4 is dead, n2 may decide elsewhere
        assert quorum.judge(["n1", "n2"], NOW + 0.2) is Right.GO_ON

    within(work())


def test_an_answer_outlasts_the_moments_in_which_the_last_nodes_go_silent() -> None:
    async def work() -> None:
        quorum = on_slurm(Slurmctld("n3", "n4"))
        quorum.judge(["n1", "n2"], NOW)
        await answered()
        assert quorum.judge(["n1", "n2"], NOW + 0.1) is Right.GO_ON  # n3 is taken out, n4 not silent enough
        assert quorum.judge(["n1", "n2", "n4"], NOW + 0.2) is Right.GO_ON
        assert quorum.judge(["n1", "n2"], NOW + 0.9) is Right.GO_ON

    within(work())


def test_an_answer_that_comes_after_a_commit_counts_for_nothing() -> None:
    async def work() -> None:
        answer = asyncio.get_running_loop().create_future()

        def slow(nodes: Sequence[str]) -> bool:
            return asyncio.run_coroutine_threadsafe(wait(), loop).result(10)

        async def wait() -> bool:
            return bool(await answer)

        loop = asyncio.get_running_loop()
        quorum = on_slurm(slow)
        quorum.judge(["n1", "n2"], NOW)
        await asyncio.sleep(0)
        quorum.commit(FOUR)  # all have just taken part in a decision
        answer.set_result(True)
        await answered()
        assert quorum.judge(["n1", "n2"], NOW + 1) is not Right.GO_ON

    within(work())


def test_on_one_machine_who_is_silent_is_dead_and_the_last_one_goes_on() -> None:
    quorum = Quorum(FOUR, Slurmctld(), LIMIT, one_machine=True)
    assert quorum.judge(["n1"], NOW) is Right.GO_ON

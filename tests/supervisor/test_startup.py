"""When training may begin, and who trains when some nodes never came."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from tests.supervisor.examples import few
from unicron_hpc.supervisor.members import Members
from unicron_hpc.supervisor.messages import Role
from unicron_hpc.supervisor.startup import JOIN_GRACE, Startup

#: Three nodes train, two are spares.
NODES, ACTIVE = ["n1", "n2", "n3", "n4", "n5"], 3
LIMIT = 60.0
NOW = 100.0


class Job:
    """The start of a job whose nodes join one by one; data is ready unless told otherwise."""

    def __init__(self, *tasks: str, joined: Collection[str] = ()) -> None:
        self.members = Members(NODES, ACTIVE)
        self.startup = Startup(self.members, ACTIVE, tasks, LIMIT, NOW)
        for name in joined:
            self.join(name, NOW)

    def join(self, name: str, now: float) -> None:
        node = self.members.get(name)
        assert node is not None
        node.heard = now
        self.startup.joined(now)

    def roles(self) -> dict[str, Role]:
        return {node.name: node.role for node in self.members.alive()}


def test_training_begins_at_once_when_everybody_is_there() -> None:
    job = Job(joined=NODES)
    assert job.startup.may_begin(NOW)


def test_nothing_begins_without_any_node() -> None:
    assert not Job().startup.may_begin(NOW + 10 * LIMIT)


def test_spares_may_come_a_little_later_than_the_nodes_that_train() -> None:
    job = Job(joined=["n1", "n2"])
    job.join("n3", NOW + 5)
    assert not job.startup.may_begin(NOW + 5 + JOIN_GRACE - 0.1)
    assert job.startup.may_begin(NOW + 5 + JOIN_GRACE)


def test_each_node_that_joins_gives_the_others_more_time() -> None:
    job = Job(joined=["n1", "n2", "n3"])
    job.join("n4", NOW + 10)
    assert not job.startup.may_begin(NOW + JOIN_GRACE)
    assert job.startup.may_begin(NOW + 10 + JOIN_GRACE)


def test_too_few_nodes_are_waited_for_as_long_as_the_settings_say() -> None:
    job = Job(joined=["n1", "n2"])
    assert not job.startup.may_begin(NOW + LIMIT - 0.1)
    assert job.startup.may_begin(NOW + LIMIT)


def test_any_three_nodes_count_as_enough_spares_too() -> None:
    job = Job(joined=["n1", "n4", "n5"])
    assert job.startup.may_begin(NOW + JOIN_GRACE)


@few
@given(st.sets(st.sampled_from(["a", "b", "c"]), min_size=1), st.floats(0, 1000))
def test_training_begins_only_when_the_data_of_every_task_is_ready(tasks: set[str], later: float) -> None:
    job = Job(*tasks, joined=NODES)
    for task in sorted(tasks):
        assert not job.startup.may_begin(NOW + later)
        job.startup.data_ready.add(task)
    assert job.startup.may_begin(NOW + later)


def test_the_data_of_each_task_is_asked_for_once() -> None:
    job = Job("a", "b")
    asked: list[str] = []
    job.startup.prepare(asked.append)
    job.startup.prepare(asked.append)
    assert sorted(asked) == ["a", "b"]


def test_data_that_a_predecessor_had_prepared_is_not_asked_for_again() -> None:
    job = Job("a", "b")
    job.startup.data_ready = {"b"}
    asked: list[str] = []
    job.startup.prepare(asked.append)
    assert asked == ["a"]


def test_a_spare_takes_the_place_of_each_node_that_never_came() -> None:
    job = Job(joined=["n1", "n3", "n4", "n5"])
    assert [node.name for node in job.startup.stand_in()] == ["n2"]
    assert job.roles() == {"n1": Role.ACTIVE, "n3": Role.ACTIVE, "n4": Role.ACTIVE, "n5": Role.SPARE}


@few
@given(st.sets(st.sampled_from(NODES), min_size=1))
def test_as_many_nodes_train_as_were_asked_for_or_as_there_are(joined: set[str]) -> None:
    job = Job(joined=joined)
    absent = {node.name for node in job.startup.stand_in()}
    assert absent == set(NODES) - joined
    training = [name for name, role in job.roles().items() if role is Role.ACTIVE]
    assert len(training) == min(ACTIVE, len(joined))

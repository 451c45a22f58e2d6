"""The coordinator's half of the epoch store, against a dict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.supervisor.examples import few, steps
from unicron_hpc.planner.layout import Seat
from unicron_hpc.supervisor.keystore import KeyStore
from unicron_hpc.supervisor.rank_messages import RankAddress, StoreReply, StoreRequest

EPOCH = 7
RANKS = [RankAddress("train", Seat("n1", slot), 1) for slot in range(3)]
KEYS = st.sampled_from(["a", "b", "c"])


class Answers:
    """Collects what the store says to whom."""

    def __init__(self) -> None:
        self.said: list[tuple[RankAddress, StoreReply]] = []
        self.store = KeyStore(EPOCH, lambda rank, reply: self.said.append((rank, reply)))
        self.asked = 0

    def ask(
        self, operation: str, *keys: str, value: bytes = b"", epoch: int = EPOCH, rank: RankAddress = RANKS[0]
    ) -> list[tuple[RankAddress, StoreReply]]:
        """Everything that is said because of one request."""
        before = len(self.said)
        self.asked += 1
        self.store.handle(rank, StoreRequest(epoch, self.asked, operation, keys, value))
        return self.said[before:]


class StoreAgainstDict(RuleBasedStateMachine):
    """Any mixture of requests: every one is answered once, with what a dict would say."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Answers()
        self.model: dict[str, bytes] = {}
        self.waiting: list[tuple[RankAddress, int, tuple[str, ...]]] = []

    def woken(self) -> list[tuple[RankAddress, StoreReply]]:
        """Those whose keys are all there now."""
        ready = [w for w in self.waiting if all(key in self.model for key in w[2])]
        self.waiting = [w for w in self.waiting if w not in ready]
        return [(rank, StoreReply(EPOCH, number, self.model[keys[-1]])) for rank, number, keys in ready]

    def reply(self, value: bytes) -> tuple[RankAddress, StoreReply]:
        return RANKS[0], StoreReply(EPOCH, self.answers.asked, value)

    @rule(key=KEYS, value=st.binary(max_size=3))
    def set(self, key: str, value: bytes) -> None:
        said = self.answers.ask("set", key, value=value)
        self.model[key] = value
        assert said == [self.reply(b""), *self.woken()]

    @rule(key=st.sampled_from(["n1", "n2"]), amount=st.integers(-5, 5))
    def add(self, key: str, amount: int) -> None:
        said = self.answers.ask("add", key, value=str(amount).encode())
        self.model[key] = str(int(self.model.get(key, b"0")) + amount).encode()
        assert said == [self.reply(self.model[key]), *self.woken()]

    @rule(
        keys=st.lists(st.sampled_from(["a", "b", "n1"]), min_size=1, max_size=3), rank=st.sampled_from(RANKS)
    )
    def get(self, keys: list[str], rank: RankAddress) -> None:
        said = self.answers.ask("get", *keys, rank=rank)
        if all(key in self.model for key in keys):
            assert said == [(rank, StoreReply(EPOCH, self.answers.asked, self.model[keys[-1]]))]
        else:
            assert said == []
            self.waiting.append((rank, self.answers.asked, tuple(keys)))

    @rule(keys=st.lists(KEYS, max_size=3))
    def check(self, keys: list[str]) -> None:
        assert self.answers.ask("check", *keys) == [self.reply(b"%d" % all(k in self.model for k in keys))]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.answers.ask("delete", key) == [self.reply(b"%d" % (key in self.model))]
        self.model.pop(key, None)

    @rule()
    def count(self) -> None:
        assert self.answers.ask("count") == [self.reply(b"%d" % len(self.model))]

    @rule(operation=st.sampled_from(["set", "get", "add"]), epoch=st.sampled_from([EPOCH - 1, EPOCH + 1]))
    def of_another_epoch(self, operation: str, epoch: int) -> None:
        ((_, reply),) = self.answers.ask(operation, "a", value=b"1", epoch=epoch)
        assert reply.epoch == epoch
        assert reply.error

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        numbers = [reply.request for _, reply in self.answers.said]
        assert len(set(numbers)) == len(numbers) == self.answers.asked - len(self.waiting)

    def teardown(self) -> None:
        before = len(self.answers.said)
        self.answers.store.close("over")
        ended = [(rank, reply.request) for rank, reply in self.answers.said[before:] if reply.error == "over"]
        assert ended == [(rank, number) for rank, number, _ in self.waiting]
        self.answers.store.close("over")
        assert len(self.answers.said) == before + len(ended)


TestStoreAgainstDict = StoreAgainstDict.TestCase
TestStoreAgainstDict.settings = steps


def test_whoever_waits_for_several_keys_is_woken_by_the_last_of_them() -> None:
    answers = Answers()
    assert answers.ask("get", "a", "b", rank=RANKS[1]) == []
    assert [reply.request for _, reply in answers.ask("set", "a", value=b"1")] == [2]
    assert answers.ask("set", "b", value=b"2")[1] == (RANKS[1], StoreReply(EPOCH, 1, b"2"))


def test_all_who_wait_for_a_key_are_woken_in_the_order_in_which_they_came() -> None:
    answers = Answers()
    for rank in RANKS:
        answers.ask("get", "a", rank=rank)
    assert [rank for rank, _ in answers.ask("set", "a", value=b"1")][1:] == RANKS


@few
@given(st.text(max_size=8), st.lists(st.text(max_size=3), max_size=3), st.binary(max_size=4))
def test_whatever_a_rank_asks_is_answered_or_waits_and_breaks_nothing(
    operation: str, keys: list[str], value: bytes
) -> None:
    answers = Answers()
    for name in (operation, "set", "add", "delete", "check", "count", "get"):
        said = answers.ask(name, *keys, value=value)
        waits = name == "get" and not said
        assert waits or said[0][1].request == answers.asked
    assert answers.ask("set", "key") == [(RANKS[0], StoreReply(EPOCH, answers.asked))]


@pytest.mark.parametrize(
    ("operation", "keys", "value"),
    [
        ("set", (), b""),
        ("add", ("a", "b"), b"1"),
        ("add", ("a",), b"x"),
        ("add", ("text",), b"1"),
        ("pop", ("a",), b""),
    ],
)
def test_what_cannot_be_done_is_refused(operation: str, keys: tuple[str, ...], value: bytes) -> None:
    answers = Answers()
    answers.ask("set", "text", value=b"no number")
    ((_, reply),) = answers.ask(operation, *keys, value=value)
    assert reply.error
    assert answers.ask("count")[0][1].value == b"1"

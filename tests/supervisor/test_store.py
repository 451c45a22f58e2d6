"""The epoch store as torch sees it, through a real coordinator's half."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from unicron_hpc.planner.layout import Seat
from unicron_hpc.runtime.store import ControlStore
from unicron_hpc.supervisor.keystore import KeyStore
from unicron_hpc.supervisor.rank_messages import RankAddress, StoreReply, StoreRequest

EPOCH = 3


class Over(Exception):
    """What `ask` raises when the epoch ends."""


class Wire:
    """Carries questions of any thread to a `KeyStore`, as agent and coordinator do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[int, Future[StoreReply]] = {}
        self._asked = 0
        self.store = KeyStore(EPOCH, self._reply)
        self.waiting = threading.Semaphore(0)
        # A PrefixStore keeps only torch's half of a store alive, so somebody has to keep ours.
        self._kept: list[ControlStore] = []

    def _reply(self, rank: RankAddress, reply: StoreReply) -> None:
        self._answers[reply.request].set_result(reply)

    def client(self, slot: int = 0) -> ControlStore:
        """The store of one rank."""
        rank = RankAddress("train", Seat("n1", slot), 1)

        def ask(operation: str, keys: tuple[str, ...], value: bytes) -> bytes:
            with self._lock:
                self._asked += 1
                answer = self._answers[self._asked] = Future()
                self.store.handle(rank, StoreRequest(EPOCH, self._asked, operation, keys, value))
            if not answer.done():
                self.waiting.release()
            reply = answer.result(timeout=20)
            if reply.error:
                raise Over(reply.error)
            return reply.value

        self._kept.append(ControlStore(ask))
        return self._kept[-1]

    def end(self) -> None:
        with self._lock:
            self.store.close("the epoch is over")


def test_it_is_a_store_for_torch_with_a_prefix_too() -> None:
    wire = Wire()
    plain, prefixed = wire.client(), dist.PrefixStore("epoch 3", wire.client())
    assert isinstance(plain, dist.Store)
    prefixed.set("key", "value")
    assert prefixed.get("key") == b"value"
    assert plain.get("epoch 3/key") == b"value"
    assert not plain.check(["key"])
    assert prefixed.check(["key"])
    assert plain.num_keys() == 1


def test_values_of_any_bytes_come_back() -> None:
    store = Wire().client()
    store.set("bytes", b"\x00\xff" * 500)
    assert store.get("bytes") == b"\x00\xff" * 500
    store.set("text", "ümlaut")
    assert store.get("text") == "ümlaut".encode()


def test_counting_is_exact_however_many_count_at_once() -> None:
    wire = Wire()
    stores = [dist.PrefixStore("p", wire.client(slot)) for slot in range(4)]
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda turn: stores[turn % 4].add("n", 1), range(40)))
    assert sorted(seen) == list(range(1, 41))
    assert stores[0].add("n", -40) == 0


def test_a_key_can_be_deleted_once() -> None:
    store = dist.PrefixStore("p", Wire().client())
    store.set("key", "value")
    assert store.delete_key("key")
    assert not store.delete_key("key")
    assert not store.check(["key"])
    store.set("other", "value")
    assert store.num_keys() == 1


def test_a_read_waits_for_the_key_and_a_wait_for_the_last_of_several() -> None:
    wire = Wire()
    reader, writer = wire.client(0), wire.client(1)
    with ThreadPoolExecutor(2) as pool:
        read = pool.submit(reader.get, "late")
        assert wire.waiting.acquire(timeout=20)
        waited = pool.submit(reader.wait, ["late", "later"], timedelta(seconds=1))
        assert wire.waiting.acquire(timeout=20)
        writer.set("late", "now")
        assert read.result(timeout=20) == b"now"
        assert not waited.done()
        writer.set("later", "")
        waited.result(timeout=20)


def test_the_end_of_the_epoch_ends_every_wait_with_an_error() -> None:
    wire = Wire()
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(wire.client(slot).get, "never") for slot in range(2)]
        for _ in waits:
            assert wire.waiting.acquire(timeout=20)
        wire.end()
        for wait in waits:
            with pytest.raises(Over, match="epoch is over"):
                wait.result(timeout=20)


def test_an_error_passes_through_torchs_own_code() -> None:
    """A `PrefixStore` is C++; the exception of our Python must come out of it."""
    wire = Wire()
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(dist.PrefixStore("p", wire.client()).get, "never")
        assert wire.waiting.acquire(timeout=20)
        wire.end()
        with pytest.raises(Over):
            wait.result(timeout=20)


def test_torch_may_set_a_timeout_although_the_epoch_bounds_every_wait() -> None:
    store = Wire().client()
    store.set_timeout(timedelta(seconds=5))
    assert store.timeout == timedelta(seconds=5)

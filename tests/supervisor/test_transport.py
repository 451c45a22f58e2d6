"""Mailboxes of agents: real sockets on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq

from tests.supervisor.events import within
from unicron_hpc.supervisor.keys import JobKeys, make_keys, read_keys
from unicron_hpc.supervisor.messages import Beat, Envelope, Vote, VoteRequest, encode
from unicron_hpc.supervisor.transport import QUEUE_LIMIT, Transport

HOST = "127.0.0.1"


@pytest.fixture
def keys(tmp_path: Path) -> JobKeys:
    return make_keys(tmp_path)


@contextlib.asynccontextmanager
async def transports(keys: JobKeys, *nodes: str) -> AsyncIterator[list[Transport]]:
    """Started transports that know each other."""
    made = [Transport(node, keys, HOST) for node in nodes]
    try:
        for one in made:
            await one.start()
        for one in made:
            one.learn({other.node: other.address for other in made if other is not one})
        yield made
    finally:
        for one in made:
            await one.close(linger=0)


def test_messages_arrive_in_the_order_in_which_they_were_sent(keys: JobKeys) -> None:
    async def work() -> None:
        async with transports(keys, "n1", "n2") as (n1, n2):
            for epoch in range(300):
                assert n1.send("n2", 5, VoteRequest("n1", epoch))
            for epoch in range(300):
                assert await n2.receive() == Envelope("n1", 5, VoteRequest("n1", epoch))
            assert n2.send("n1", 6, Vote(True))
            assert await n1.receive() == Envelope("n2", 6, Vote(True))

    within(work())


def test_a_node_can_send_to_itself(keys: JobKeys) -> None:
    async def work() -> None:
        async with transports(keys, "n1") as (n1,):
            assert n1.knows("n1")
            assert n1.send("n1", 1, Beat(1))
            assert await n1.receive() == Envelope("n1", 1, Beat(1))

    within(work())


def test_a_message_to_an_unknown_node_is_not_taken(keys: JobKeys) -> None:
    async def work() -> None:
        async with transports(keys, "n1") as (n1,):
            assert not n1.knows("n9")
            assert n1.send("n9", 1, Beat(1)) is False
            n1.learn({"n9": ""})  # its agent has not said where it is
            assert n1.send("n9", 1, Beat(1)) is False

    within(work())


def rejected(address: str, stranger: JobKeys | None, server: bytes = b"") -> None:
    """Speak with foreign keys, or with none, and return when the connection has been refused."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        if stranger:
            dealer.curve_serverkey = server
            dealer.curve_publickey, dealer.curve_secretkey = stranger.public, stranger.secret
        with dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            dealer.connect(address)
            dealer.send(encode(Envelope("n1", 9, Vote(True))))
            assert monitor.poll(10_000), "the connection was not refused"
            dealer.disable_monitor()


@pytest.mark.parametrize("who", ["knows our public key", "knows nothing", "speaks in plain text"])
def test_a_stranger_is_not_heard(keys: JobKeys, tmp_path: Path, who: str) -> None:
    (tmp_path / "stranger").mkdir()
    stranger = make_keys(tmp_path / "stranger")

    async def work() -> None:
        async with transports(keys, "n1", "n2") as (n1, n2):
            if who == "speaks in plain text":
                await asyncio.to_thread(rejected, n2.address, None)
            else:
                server = keys.public if who == "knows our public key" else stranger.public
                await asyncio.to_thread(rejected, n2.address, stranger, server)
            n1.send("n2", 1, Beat(1))
            assert await n2.receive() == Envelope("n1", 1, Beat(1))

    within(work())


def test_a_stranger_in_our_place_can_read_nothing(keys: JobKeys) -> None:
    """Whoever takes over an agent's port gets the greeting of the protocol, and never our words."""
    word = "a-word-that-must-not-be-readable"

    async def work() -> None:
        heard = bytearray()
        done = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A ZMTP 3 greeting that claims CURVE, then nothing: the sender waits for a handshake.
            writer.write(
                b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\x01" + bytes(31)
            )
            while not done.is_set() and (data := await reader.read(4096)):
                heard.extend(data)
                if len(heard) > 200:  # its greeting (64 bytes) and its HELLO command
                    done.set()
            writer.close()

        server = await asyncio.start_server(listen, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        async with transports(keys, "n1") as (n1,):
            n1.learn({"n2": f"tcp://{HOST}:{port}"})
            for _ in range(20):
                assert n1.send("n2", 1, VoteRequest(word, 1))
            await done.wait()
        server.close()
        assert word.encode() not in heard
        assert keys.secret not in heard

    within(work())


def test_garbage_from_the_job_itself_is_dropped_and_the_next_message_heard(keys: JobKeys) -> None:
    async def work() -> None:
        async with transports(keys, "n1", "n2") as (n1, n2):
            n1.send("n2", 1, Beat(1))
            dealer = n1._dealers["n2"][1]
            deep = b"\x84\xa1x" + b"\x91" * 2000 + b"\xc0" + encode(Envelope("n1", 1, Beat(1)))[1:]
            for garbage in (b"", b"\xc1\xc1", b"\x93\x01", deep, b"\x80" * 1000):
                zmq.Socket.send(dealer, garbage, flags=zmq.DONTWAIT)
            n1.send("n2", 2, Vote(False))
            assert (await n2.receive()).term == 1
            assert await n2.receive() == Envelope("n1", 2, Vote(False))

    within(work())


def test_a_peer_that_is_not_there_never_blocks_the_sender(keys: JobKeys) -> None:
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))  # bound, not listening: connections are refused
        address = f"tcp://{HOST}:{nobody.getsockname()[1]}"

        async def work() -> None:
            async with transports(keys, "n1", "n2") as (n1, n2):
                n1.learn({"n3": address})
                taken = [n1.send("n3", 1, Beat(1)) for _ in range(QUEUE_LIMIT + 1000)]
                assert taken[0] is True
                assert taken[-1] is False  # full: as good as lost
                n1.send("n2", 1, Beat(1))
                assert (await n2.receive()).sender == "n1"

        within(work())


def test_a_stopped_peer_gets_what_was_sent_once_it_runs_again(keys: JobKeys, tmp_path: Path) -> None:
    peer = subprocess.Popen([sys.executable, "-c", PEER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert peer.stdout is not None
    address = peer.stdout.readline().strip()

    async def work() -> None:
        async with transports(keys, "n1") as (n1,):
            n1.learn({"n2": address})
            n1.send("n2", 1, Beat(1))
            assert await asyncio.to_thread(peer.stdout.readline) == "1\n"  # type: ignore[union-attr]
            os.kill(peer.pid, 19)
            for term in range(2, 500):
                assert n1.send("n2", term, Beat(1))
            os.kill(peer.pid, 18)
            for term in range(2, 500):
                assert await asyncio.to_thread(peer.stdout.readline) == f"{term}\n"  # type: ignore[union-attr]

    try:
        within(work())
    finally:
        peer.kill()
        peer.wait()
        peer.stdout.close()


PEER = """
import asyncio, sys
from pathlib import Path
from unicron_hpc.supervisor.keys import read_keys
from unicron_hpc.supervisor.transport import Transport

async def work():
    mailbox = Transport("n2", read_keys(Path(sys.argv[1])), "127.0.0.1")
    await mailbox.start()
    print(mailbox.address, flush=True)
    while True:
        print((await mailbox.receive()).term, flush=True)

asyncio.run(work())
"""


def test_a_restarted_agent_is_reached_at_its_new_address_and_old_orders_are_forgotten(
    keys: JobKeys, tmp_path: Path
) -> None:
    async def work() -> None:
        async with transports(keys, "n1") as (n1,):
            first = Transport("n2", read_keys(tmp_path), HOST)
            await first.start()
            n1.learn({"n2": first.address})
            n1.send("n2", 1, Beat(1))
            assert (await first.receive()).term == 1
            await first.close(linger=0)
            n1.send("n2", 2, Beat(1))  # to one that is gone
            n1.forget("n2")
            assert n1.send("n2", 3, Beat(1)) is False
            second = Transport("n2", keys, HOST)
            await second.start()
            n1.learn({"n2": second.address})
            n1.send("n2", 4, Beat(1))
            assert (await second.receive()).term == 4
            await second.close(linger=0)

    within(work())


def test_a_changed_address_replaces_the_connection_without_forgetting_first(keys: JobKeys) -> None:
    async def work() -> None:
        async with transports(keys, "n1", "n2") as (n1, n2):
            n1.send("n2", 1, Beat(1))
            assert (await n2.receive()).term == 1
            again = Transport("n2", keys, HOST)
            await again.start()
            n1.learn({"n2": again.address})
            n1.send("n2", 2, Beat(1))
            assert (await again.receive()).term == 2
            await again.close(linger=0)

    within(work())

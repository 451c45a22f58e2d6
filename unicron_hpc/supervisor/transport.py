"""Messages between agents over ZeroMQ: encrypted, authenticated, never blocking the sender.

Each agent binds one ROUTER and opens a DEALER to each agent that it sends to. Both ends use the job's one
key pair, and the authenticator lets in that public key only, so a stranger can neither read nor speak.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

import msgspec
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from unicron_hpc.supervisor.keys import JobKeys
from unicron_hpc.supervisor.messages import Body, Envelope, decode, encode

log = logging.getLogger(__name__)

#: Messages kept for a peer that does not read; more than that and the oldest intent is moot anyway.
QUEUE_LIMIT = 20_000


#: Milliseconds between ZeroMQ's own signs of life on an idle connection.
HEARTBEAT_MS = 1000


class _OnlyTheJob:
    """Credentials provider that accepts exactly one client key."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the client with this key (Z85 text) may speak."""
        return key == self._public


class Transport:
    """One agent's mailbox.

    Parameters
    ----------
    node
        This agent's node, the sender of all it sends.
    keys
        The job's keys.
    host
        Address to bind; the port is chosen by the system.
    """

    def __init__(self, node: str, keys: JobKeys, host: str) -> None:
        self.node = node
        self._keys = keys
        self._host = host
        self._context = zmq.asyncio.Context()
        self._authenticator: AsyncioAuthenticator | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._dealers: dict[str, tuple[str, zmq.asyncio.Socket]] = {}
        self._addresses: dict[str, str] = {}
        self._inbox: asyncio.Queue[Envelope] = asyncio.Queue()
        self._receiver: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Bind and begin to receive; `address` is known afterwards."""
        self._authenticator = AsyncioAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            domain="*", credentials_provider=_OnlyTheJob(self._keys.public)
        )
        router = self._context.socket(zmq.ROUTER)
        router.curve_server = True
        router.curve_publickey = self._keys.public
        router.curve_secretkey = self._keys.secret
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVHWM, QUEUE_LIMIT)
        router.setsockopt(zmq.IPV6, ":" in self._host)
        host = f"[{self._host}]" if ":" in self._host else self._host
        port = router.bind_to_random_port(f"tcp://{host}")
        self.address = f"tcp://{host}:{port}"
        self._router = router
        self._receiver = asyncio.create_task(self._receive(), name="transport")

    def learn(self, addresses: Mapping[str, str]) -> None:
        """Where agents can be reached: a changed address replaces the connection, one's own is left out."""
        for node, address in addresses.items():
            if node != self.node and address and self._addresses.get(node) != address:
                self._addresses[node] = address

    def knows(self, node: str) -> bool:
        return node == self.node or node in self._addresses

    def forget(self, node: str) -> None:
        """Drop the connection to a lost node and what is still queued for it."""
        self._addresses.pop(node, None)
        old = self._dealers.pop(node, None)
        if old:
            old[1].close(linger=0)

    def send(self, node: str, term: int, body: Body) -> bool:
        """Queue a message; it is delivered in order or not at all.

        Returns
        -------
        bool
            False when the node's address is unknown or its queue is full: as good as lost, and the
            caller's time-outs treat it so.
        """
        envelope = Envelope(self.node, term, body)
        if node == self.node:
            self._inbox.put_nowait(envelope)
            return True
        dealer = self._dealer(node)
        if dealer is None:
            return False
        try:
            # The synchronous send of the underlying socket: queues or fails, never waits.
            zmq.Socket.send(dealer, encode(envelope), flags=zmq.DONTWAIT)
        except zmq.Again:
            log.warning("queue for %s is full: %s dropped", node, type(body).__name__)
            return False
        return True

    async def receive(self) -> Envelope:
        """The next message."""
        return await self._inbox.get()

    async def close(self, linger: float = 0.5) -> None:
        """Close all sockets, giving queued messages at most `linger` seconds to leave."""
        if self._receiver:
            self._receiver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._receiver
        for _, dealer in self._dealers.values():
            dealer.close(linger=int(linger * 1000))
        if self._router:
            self._router.close(linger=0)
        if self._authenticator:
            self._authenticator.stop()
        await asyncio.to_thread(self._context.term)

    def _dealer(self, node: str) -> zmq.asyncio.Socket | None:
        address = self._addresses.get(node)
        if address is None:
            return None
        known = self._dealers.get(node)
        if known and known[0] == address:
            return known[1]
        if known:
            known[1].close(linger=0)
        dealer = self._context.socket(zmq.DEALER)
        dealer.curve_serverkey = self._keys.public
        dealer.curve_publickey = self._keys.public
        dealer.curve_secretkey = self._keys.secret
        dealer.setsockopt(zmq.LINGER, 500)
        dealer.setsockopt(zmq.SNDHWM, QUEUE_LIMIT)
        dealer.setsockopt(zmq.RECONNECT_IVL, 100)
        # A connection whose other end has vanished without a word is noticed and built anew.
        dealer.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        dealer.setsockopt(zmq.IPV6, "[" in address)
        dealer.connect(address)
        self._dealers[node] = (address, dealer)
        return dealer

    async def _receive(self) -> None:
        router = self._router
        assert router is not None  # set by start(), which creates this task
        while True:
            parts = await router.recv_multipart()
            try:
                self._inbox.put_nowait(decode(parts[-1]))
            except (msgspec.DecodeError, ValueError) as error:
                log.warning("message that is none of ours dropped: %s", error)

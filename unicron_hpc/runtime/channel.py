"""A rank's blocking end of the socket to its agent."""

from __future__ import annotations

import socket
import threading

from unicron_hpc.supervisor.rank_messages import (
    HEADER_BYTES,
    FromRank,
    ToRank,
    frame,
    frame_length,
    to_rank_decoder,
)


class AgentGone(Exception):
    """The agent closed its end: this rank has nobody to work for any more."""


class Channel:
    """Framed messages; `send` may be called by any thread, `receive` by one."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(True)
        self._lock = threading.Lock()

    def send(self, message: FromRank) -> None:
        """Send a message.

        Raises
        ------
        AgentGone
            When the agent does not read any more.
        """
        data = frame(message)
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError as error:
            raise AgentGone from error

    def receive(self) -> ToRank:
        """Wait for the next order.

        Raises
        ------
        AgentGone
            When the agent has gone.
        """
        header = self._exactly(HEADER_BYTES)
        return to_rank_decoder.decode(self._exactly(frame_length(header)))

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                data = self._socket.recv(count - len(parts))
            except OSError as error:
                raise AgentGone from error
            if not data:
                raise AgentGone
            parts += data
        return bytes(parts)

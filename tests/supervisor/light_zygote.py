"""A real zygote whose ranks import next to nothing: `python -m tests.supervisor.light_zygote FD`.

A rank says hello and then does what the reason of each order to stop tells it, see `rank`. The frames are put
together by hand, so that it starts in a fraction of the time that our own modules (scipy behind them) take.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

import msgspec

from unicron_hpc.runtime.zygote import serve

#: Exit code of a rank that has lost its agent.
AGENT_GONE = 75


def rank(sock: socket.socket) -> int:
    """What a forked rank does."""
    _say(sock, "RankHello", pid=os.getpid())
    stream = sock.makefile("rb")
    while header := stream.read(4):
        order = msgspec.msgpack.decode(stream.read(struct.unpack("!I", header)[0]))
        if order["type"] == "Cut":
            _say(sock, "RankFinished", epoch=order["epoch"], iteration=0)
            continue
        if order["type"] == "Inject":
            _say(sock, "RankFault", epoch=0, error=f"{order['name']} {order['iteration']}", traceback="")
            continue
        word, _, rest = order.get("reason", "").partition(" ")
        match word:
            case "exit":
                return int(rest)
            case "raise":
                raise RuntimeError(rest)
            case "print":
                print(rest, flush=True)
            case "environment":
                _say(sock, "RankFault", epoch=0, error=os.environ.get(rest, ""), traceback="")
            case "last":  # its last words, and its end right behind them
                for number in range(int(rest)):
                    _say(sock, "RankFinished", epoch=number, iteration=number)
                os.kill(os.getpid(), signal.SIGKILL)
            case "garbage":
                sock.sendall(b"\x00\x00\x00\x02\xc1\xc1")
            case "endless":
                sock.sendall(b"\xff\xff\xff\xff")
            case "orphan":  # leaves a child behind that keeps the socket open
                if os.fork() == 0:
                    _say(sock, "RankFault", epoch=0, error=str(os.getpid()), traceback="")
                    signal.pause()
                signal.pause()
            case "core":  # dumps core into a folder
                os.chdir(rest)
                hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
                resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
                os.abort()
            case "deaf":  # does not notice that its agent is gone
                signal.pause()
    return AGENT_GONE


def _say(sock: socket.socket, kind: str, **fields: Any) -> None:
    body = msgspec.msgpack.encode({"type": kind, **fields})
    sock.sendall(struct.pack("!I", len(body)) + body)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), rank, 0.0)

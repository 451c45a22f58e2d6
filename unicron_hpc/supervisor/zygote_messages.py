"""What an agent and its zygote say to each other, over a SOCK_SEQPACKET pair (one message a packet)."""

from __future__ import annotations

import msgspec


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Fork a rank. The packet carries the rank's end of its socket to the agent, and its phase page.

    Attributes
    ----------
    request
        Number that the answer repeats.
    log
        File to which the rank's stdout and stderr are appended.
    environment
        Variables set in the rank on top of the zygote's own.
    """

    request: int
    log: str
    environment: dict[str, str]


class ZygoteReady(msgspec.Struct, frozen=True, tag=True):
    """All imports are done; forked ranks are warm from now on."""

    seconds: float


class Spawned(msgspec.Struct, frozen=True, tag=True):
    """A rank runs. The packet carries its pidfd, opened before anybody could reap it."""

    request: int
    pid: int


class ChildExited(msgspec.Struct, frozen=True, tag=True):
    """A rank is gone: exit code, or minus the number of the signal that killed it; `core`: it dumped core."""

    pid: int
    status: int
    core: bool = False


FromZygote = ZygoteReady | Spawned | ChildExited

#: Longest packet: a spawn request with its environment.
MAX_PACKET = 256 * 1024

encoder = msgspec.msgpack.Encoder()
spawn_decoder: msgspec.msgpack.Decoder[Spawn] = msgspec.msgpack.Decoder(Spawn)
from_zygote_decoder: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)

"""Finds the TCP sockets that process groups opened and shuts them down from another thread.

Gloo has no abort that ends a blocked call; closing the connections under it does. The listening sockets
are left alone: shutting one down kills the process or hangs the next initialisation.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

#: Pause between two looks for new sockets while groups are still being built.
_RETRY_SECONDS = 0.005
#: What gloo's connecting side sends first: the number of the connection, as a native ssize_t.
_GLOO_GREETING = struct.Struct("@n")
_CONNECT_SECONDS = 0.5


def open_sockets() -> dict[int, int]:
    """Descriptor -> inode of every socket of this process."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:["):
                found[int(name)] = int(link[8:-1])
    return found


def shut(descriptor: int, inode: int) -> bool:
    """Shut down a connected TCP socket; False when it is gone or is not one."""
    with _borrowed(descriptor, inode) as found:
        if found is None or found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        with contextlib.suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)
            return True
    return False


def answer_for_absent(descriptor: int, inode: int, peers: int) -> None:
    """End gloo's wait for peers that will not connect any more, on a listening socket of ours.

    The waiting side has no connection yet that could be shut down, and no call that ends its wait. So each
    of the expected connections is made from here and closed at once, which gloo takes for a peer that went
    away. (gloo/transport/tcp/listener.cc: connections are numbered from 0 for each listener; the number
    arrives first. Should that change, the wait lasts for the building timeout instead.)
    """
    with _borrowed(descriptor, inode) as found:
        if found is None or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return
        address = found.getsockname()
    for number in range(peers):
        with contextlib.suppress(OSError), socket.create_connection(address[:2], _CONNECT_SECONDS) as caller:
            caller.sendall(_GLOO_GREETING.pack(number))


@contextlib.contextmanager
def _borrowed(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """The TCP socket behind a descriptor, if it is still the one with this inode."""
    try:
        # A duplicate cannot be closed and handed to somebody else between the check and its use.
        found = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        yield None
        return
    with found:
        same = os.fstat(found.fileno()).st_ino == inode
        yield found if same and found.family in (socket.AF_INET, socket.AF_INET6) else None


class SocketGuard:
    """Remembers which sockets belong to the groups of one epoch.

    `begin` and `end` enclose the building of groups (main thread); `cut` may come from any thread at any
    time, also in between: connections that appear later are then shut down as they come.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[int, int] | None = None
        self._groups: dict[int, int] = {}
        self._chaser: threading.Thread | None = None
        self._peers = 0

    def begin(self, peers: int) -> None:
        """Sockets that appear from now on belong to the groups, of at most `peers` ranks each."""
        with self._lock:
            self._groups = {}
            self._peers = peers
            self._before = open_sockets()

    def end(self) -> None:
        """The groups are built (or building failed); later sockets are somebody else's."""
        with self._lock:
            if self._before is not None:
                self._groups = self._new_since(self._before)
            self._before = None
            chaser, self._chaser = self._chaser, None
        if chaser is not None:
            chaser.join()

    def cut(self) -> int:
        """Shut the groups' connections down; returns how many."""
        with self._lock:
            if self._before is None:
                return sum(shut(fd, inode) for fd, inode in self._groups.items())
            if self._chaser is None:
                self._chaser = threading.Thread(target=self._chase, name="cut", daemon=True)
                self._chaser.start()
            return sum(shut(fd, inode) for fd, inode in self._new_since(self._before).items())

    def _chase(self) -> None:
        answered: set[int] = set()
        while True:
            with self._lock:
                if self._before is None:
                    return
                found = self._new_since(self._before)
            for fd, inode in found.items():
                shut(fd, inode)
                if inode not in answered:
                    answered.add(inode)
                    answer_for_absent(fd, inode, self._peers)
            time.sleep(_RETRY_SECONDS)

    @staticmethod
    def _new_since(before: dict[int, int]) -> dict[int, int]:
        return {fd: inode for fd, inode in open_sockets().items() if before.get(fd) != inode}

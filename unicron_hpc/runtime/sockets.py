"""Finds the TCP sockets that process groups opened and shuts them down from another thread.

Gloo has no abort that ends a blocked call; closing the connections under it does. The listening sockets
are left alone: shutting one down kills the process or hangs the next initialisation.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

#: Pause between two looks for new sockets while groups are still being built.
_RETRY_SECONDS = 0.005


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
    try:
        # A duplicate cannot be closed and handed to somebody else between the check and the shutdown.
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return False
    with connection:
        try:
            if os.fstat(connection.fileno()).st_ino != inode:
                return False
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True


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

    def begin(self) -> None:
        """Sockets that appear from now on belong to the groups."""
        with self._lock:
            self._groups = {}
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
        while True:
            with self._lock:
                if self._before is None:
                    return
                for fd, inode in self._new_since(self._before).items():
                    shut(fd, inode)
            time.sleep(_RETRY_SECONDS)

    @staticmethod
    def _new_since(before: dict[int, int]) -> dict[int, int]:
        return {fd: inode for fd, inode in open_sockets().items() if before.get(fd) != inode}

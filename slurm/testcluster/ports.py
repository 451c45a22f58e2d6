"""Free TCP ports outside the range from which the kernel hands them out by itself."""

from __future__ import annotations

import random
import socket

from testcluster.errors import ClusterError


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free(count: int, *, first: int = 18000, last: int = 30000) -> list[int]:
    """Return `count` ports on which nobody listens, from a random place so that two callers rarely meet."""
    start = random.randrange(first, last)
    found = []
    for offset in range(last - first):
        port = first + (start - first + offset) % (last - first)
        if _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise ClusterError(f"no {count} free TCP ports between {first} and {last}")

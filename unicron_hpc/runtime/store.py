"""The epoch's key-value store as torch sees it; the keys travel through the agent's socket."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store  # torch.distributed hides it from mypy

#: (operation, keys, value) -> answer. Raises when the epoch is over.
Ask = Callable[[str, tuple[str, ...], bytes], bytes]


class ControlStore(Store):
    """A `torch.distributed.Store` of one epoch.

    Every wait is bounded by the epoch: when it ends, waiting calls raise, so no rank ever hangs in a
    rendezvous with the dead.

    Parameters
    ----------
    ask
        Sends one operation to the coordinator and waits for the answer.

    Notes
    -----
    Somebody must hold on to this object for as long as its groups live: a PrefixStore keeps only torch's half
    alive and then calls a pure virtual function.
    """

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._ask = ask
        self._timeout = timedelta(seconds=60)

    @property
    def timeout(self) -> timedelta:
        """Given to torch for its own bookkeeping; waits end with the epoch, not with this."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", (key,), value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._ask("get", (key,), b"")

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", (key,), str(amount).encode()))

    def check(self, keys: list[str]) -> bool:
        return self._ask("check", tuple(keys), b"") == b"1"

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._ask("get", tuple(keys), b"")

    def delete_key(self, key: str) -> bool:
        return self._ask("delete", (key,), b"") == b"1"

    def num_keys(self) -> int:
        return int(self._ask("count", (), b""))

    # Torch's own code (a PrefixStore around this one) looks for these two under their C++ names.
    deleteKey = delete_key
    getNumKeys = num_keys

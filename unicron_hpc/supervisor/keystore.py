"""The coordinator's half of the epoch store: keys of one epoch of one task, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unicron_hpc.supervisor.rank_messages import RankAddress, StoreReply, StoreRequest

_ON_ONE_KEY = frozenset({"set", "add", "delete"})
_OPERATIONS = _ON_ONE_KEY | {"get", "check", "count"}


@dataclass(slots=True)
class _Waiter:
    rank: RankAddress
    request: StoreRequest


class KeyStore:
    """Keys of one epoch.

    Parameters
    ----------
    epoch
        Requests of any other epoch are refused.
    reply
        Sends an answer to a rank.
    """

    def __init__(self, epoch: int, reply: Callable[[RankAddress, StoreReply], None]) -> None:
        self._epoch = epoch
        self._reply = reply
        self._values: dict[str, bytes] = {}
        self._waiters: list[_Waiter] = []

    def handle(self, rank: RankAddress, request: StoreRequest) -> None:
        """Answer a request now, or when its keys are there."""
        if request.epoch != self._epoch:
            error = f"epoch {request.epoch} is over, {self._epoch} has begun"
            self._reply(rank, StoreReply(request.epoch, request.request, error=error))
            return
        if request.operation == "get" and any(key not in self._values for key in request.keys):
            self._waiters.append(_Waiter(rank, request))
            return
        if error := self._problem(request):
            self._reply(rank, StoreReply(request.epoch, request.request, error=error))
            return
        self._answer(rank, request)
        if request.operation in ("set", "add"):
            self._wake(request.keys[0])

    def _problem(self, request: StoreRequest) -> str:
        """Why a request cannot be carried out; a rank gone mad must not take the coordinator with it."""
        if request.operation not in _OPERATIONS:
            return f"unknown store operation {request.operation!r}"
        if request.operation in _ON_ONE_KEY and len(request.keys) != 1:
            return f"{request.operation} takes one key, not {len(request.keys)}"
        if request.operation == "add":
            try:
                int(request.value), int(self._values.get(request.keys[0], b"0"))
            except ValueError as error:
                return f"cannot add: {error}"
        return ""

    def _answer(self, rank: RankAddress, request: StoreRequest) -> None:
        keys, values = request.keys, self._values
        value = b""
        match request.operation:
            case "set":
                values[keys[0]] = request.value
            case "get":
                value = values[keys[-1]] if keys else b""
            case "add":
                value = str(int(values.get(keys[0], b"0")) + int(request.value)).encode()
                values[keys[0]] = value
            case "check":
                value = b"1" if all(key in values for key in keys) else b"0"
            case "delete":
                value = b"1" if values.pop(keys[0], None) is not None else b"0"
            case "count":
                value = str(len(values)).encode()
        self._reply(rank, StoreReply(request.epoch, request.request, value))

    def _wake(self, key: str) -> None:
        still: list[_Waiter] = []
        for waiter in self._waiters:
            if key in waiter.request.keys and all(k in self._values for k in waiter.request.keys):
                self._answer(waiter.rank, waiter.request)
            else:
                still.append(waiter)
        self._waiters = still

    def close(self, reason: str) -> None:
        """End the epoch: all who still wait get an error."""
        for waiter in self._waiters:
            reply = StoreReply(waiter.request.epoch, waiter.request.request, error=reason)
            self._reply(waiter.rank, reply)
        self._waiters = []

"""The agent's side of the zygote: asks for ranks, sees them die, collects how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unicron_hpc.errors import UnicronError
from unicron_hpc.runtime.phase_page import PhasePage
from unicron_hpc.supervisor.zygote_messages import (
    MAX_PACKET,
    ChildExited,
    Spawn,
    Spawned,
    ZygoteReady,
    encoder,
    from_zygote_decoder,
)

log = logging.getLogger(__name__)

#: How long a killed process may take to be gone, in seconds; one that hangs in a device driver never is.
REAP_LIMIT = 1.0
#: How long a dead rank's exit status may take to come from the zygote, in seconds.
STATUS_GRACE = 0.5


@dataclass(slots=True, eq=False)
class RankProcess:
    """A rank as its agent sees it."""

    pid: int
    pidfd: int
    socket: socket.socket
    status: int | None = None
    core: bool = False
    #: Unix time at which its death was seen.
    died: float = 0.0
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    reaped: asyncio.Event = field(default_factory=asyncio.Event)

    def kill(self) -> None:
        """Send SIGKILL; harmless when the process is gone already."""
        if not self.gone.is_set():
            with contextlib.suppress(ProcessLookupError, OSError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class Zygote:
    """One node's zygote, restarted when it dies.

    Parameters
    ----------
    log_path
        File for the zygote's own output.
    environment
        Environment of the zygote and its ranks.
    on_ready
        Called when the imports are done.
    module
        What `python -m` runs as the zygote; it decides what its ranks do.
    """

    #: A zygote that dies this often is not restarted any more.
    MAX_STARTS = 5

    def __init__(
        self,
        log_path: Path,
        environment: Mapping[str, str],
        on_ready: Callable[[], None],
        *,
        module: str = "unicron_hpc.runtime.zygote",
    ) -> None:
        self._log_path = log_path
        self._module = module
        self._environment = dict(environment)
        self._on_ready = on_ready
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._requests: dict[int, tuple[asyncio.Future[RankProcess], socket.socket]] = {}
        self._children: dict[int, RankProcess] = {}
        self._collecting: set[asyncio.Task[None]] = set()
        self._next_request = 0
        self._starts = 0
        self._closed = False
        self.warm = False

    def start(self) -> None:
        """Start the process; it becomes warm some seconds later."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        descriptor = os.open(self._log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=self._environment,
                pass_fds=[theirs.fileno()],
            )
        finally:
            os.close(descriptor)
            theirs.close()
        self._socket = ours
        self._starts += 1
        asyncio.get_running_loop().add_reader(ours, self._on_readable)

    async def spawn(
        self, log_path: Path, environment: Mapping[str, str], page: PhasePage | None = None
    ) -> RankProcess:
        """Fork a rank (waits for the imports, if they are still under way).

        Parameters
        ----------
        log_path, environment
            Where it writes, and what is set on top of the zygote's own variables.
        page
            Where it says what it is doing.

        Raises
        ------
        UnicronError
            When the zygote has died too often to be trusted; its log says why.
        """
        if self._socket is None:
            raise self._dead()
        self._next_request += 1
        request = self._next_request
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        future: asyncio.Future[RankProcess] = asyncio.get_running_loop().create_future()
        self._requests[request] = (future, ours)
        packet = encoder.encode(Spawn(request, str(log_path), dict(environment)))
        try:
            descriptors = [theirs.fileno()] if page is None else [theirs.fileno(), page.descriptor]
            socket.send_fds(self._socket, [packet], descriptors)
        except OSError as error:
            self._requests.pop(request, None)
            ours.close()
            raise self._dead() from error
        finally:
            theirs.close()
        return await future

    def close(self) -> None:
        """Kill all ranks and the zygote, and reap them."""
        self._closed = True
        self._refuse_requests()
        for child in list(self._children.values()):
            child.kill()
        self._drop_socket()
        if self._process:
            self._process.kill()
            _ends_within(REAP_LIMIT, lambda: self._process is None or self._process.poll() is not None)
        for child in self._children.values():
            # Adopted now (subreaper), so they are ours to reap.
            if not _ends_within(REAP_LIMIT, functools.partial(_reaped, child.pid)):
                log.error("rank %d does not end although it was killed", child.pid)

    def _dead(self) -> UnicronError:
        return UnicronError(
            "the process that starts ranks has died repeatedly",
            where=str(self._log_path),
            hint="Its log shows the error; mostly torch or megatron-core cannot be imported on this node.",
        )

    def _refuse_requests(self) -> None:
        """Tell all who wait for a rank that none will come."""
        for future, ours in self._requests.values():
            ours.close()
            if not future.done():
                future.set_exception(self._dead())
        self._requests.clear()

    def _drop_socket(self) -> None:
        if self._socket:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _on_readable(self) -> None:
        assert self._socket is not None  # the reader is removed together with the socket
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._socket, MAX_PACKET, 1)
        except BlockingIOError:
            return
        except OSError:
            packet, descriptors = b"", []
        if not packet:
            self._on_zygote_death()
            return
        message = from_zygote_decoder.decode(packet)
        if isinstance(message, ZygoteReady):
            self.warm = True
            log.info("zygote warm after %.1f s of imports", message.seconds)
            self._on_ready()
        elif isinstance(message, Spawned):
            self._on_spawned(message, descriptors[0])
        elif isinstance(message, ChildExited):
            child = self._children.get(message.pid)
            if child:
                child.status, child.core = message.status, message.core
                child.reaped.set()

    def _on_spawned(self, message: Spawned, pidfd: int) -> None:
        future, ours = self._requests.pop(message.request)
        child = RankProcess(message.pid, pidfd, ours)
        self._children[message.pid] = child
        asyncio.get_running_loop().add_reader(pidfd, self._on_death, child)
        if future.cancelled():
            child.kill()
        else:
            future.set_result(child)

    def _on_death(self, child: RankProcess) -> None:
        child.died = time.time()
        child.dead.set()
        asyncio.get_running_loop().remove_reader(child.pidfd)
        task = asyncio.get_running_loop().create_task(self._collect(child))
        self._collecting.add(task)
        task.add_done_callback(self._collecting.discard)

    async def _collect(self, child: RankProcess) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.reaped.wait(), STATUS_GRACE)
        if not child.reaped.is_set():
            with contextlib.suppress(ChildProcessError, OSError):
                result = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG)
                if result:
                    killed = result.si_code != os.CLD_EXITED
                    child.core = result.si_code == os.CLD_DUMPED
                    child.status = -result.si_status if killed else result.si_status
        os.close(child.pidfd)
        self._children.pop(child.pid, None)
        child.gone.set()

    def _on_zygote_death(self) -> None:
        self.warm = False
        self._drop_socket()
        process = self._process
        if process and not _ends_within(REAP_LIMIT, lambda: process.poll() is not None):
            process.kill()
        code = process.poll() if process else None
        self._refuse_requests()
        if self._closed:
            return
        log.error("zygote ended with %s; see %s", code, self._log_path)
        if self._starts < self.MAX_STARTS:
            self.start()


def _ends_within(seconds: float, ended: Callable[[], bool]) -> bool:
    """Whether something ends within a short time, during which the agent does nothing else."""
    deadline = time.monotonic() + seconds
    while not ended():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _reaped(pid: int) -> bool:
    """Whether a child is gone; takes its status if it is just ending."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True

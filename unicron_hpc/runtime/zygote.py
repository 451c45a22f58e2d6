"""The zygote: has torch and Megatron-core imported and forks warm ranks when its agent asks.

It starts no thread and touches no device, which is what makes forking it safe. It is the parent of the node's
ranks: it reaps them and tells the agent how they ended. When the agent goes away, so does it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

from unicron_hpc.runtime.environment import PHASE_PAGE, PREPARE_DATA, ROLE
from unicron_hpc.supervisor.zygote_messages import (
    MAX_PACKET,
    ChildExited,
    FromZygote,
    Spawn,
    Spawned,
    ZygoteReady,
    encoder,
    spawn_decoder,
)

#: Added to a rank's oom_score_adj: as if it used so many thousandths of the memory more than it does.
RANK_BADNESS = 100

RankMain = Callable[[socket.socket], int]


def serve(agent: socket.socket, rank_main: RankMain, import_seconds: float) -> None:
    """Fork ranks until the agent closes its end.

    Parameters
    ----------
    agent
        SOCK_SEQPACKET socket to the agent.
    rank_main
        What a forked rank runs; returns its exit code.
    import_seconds
        How long the imports took, for the agent's log.
    """
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # The agent decides when its zygote ends; a terminal's or Slurm's signal to the group must not.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    _tell(agent, ZygoteReady(import_seconds))
    while True:
        readable, _, _ = select.select([agent.fileno(), wake_read], [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _reap(agent)
        if agent.fileno() in readable:
            packet, descriptors, _, _ = socket.recv_fds(agent, MAX_PACKET, 2)
            if not packet:
                return
            request = spawn_decoder.decode(packet)
            try:
                pid = os.fork()
            except OSError as error:
                # Without an answer the agent's order times out, and the task tries elsewhere or later.
                print(f"cannot fork: {error}", file=sys.stderr, flush=True)
                _close(descriptors)
                continue
            if pid == 0:
                agent.close()
                os.close(wake_read)
                os.close(wake_write)
                _become_rank(request, descriptors, rank_main)
            pidfd = os.pidfd_open(pid)
            with contextlib.suppress(BrokenPipeError):
                socket.send_fds(agent, [encoder.encode(Spawned(request.request, pid))], [pidfd])
            os.close(pidfd)
            _close(descriptors)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _become_rank(request: Spawn, descriptors: Sequence[int], rank_main: RankMain) -> None:
    """Turn the forked child into a rank; never returns."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(request.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.update(request.environment)
        _die_first()
        if len(descriptors) > 1:
            os.environ[PHASE_PAGE] = str(descriptors[1])
        code = rank_main(socket.socket(fileno=descriptors[0]))
    except BaseException as error:  # the child must never fall back into the zygote's loop
        import traceback

        traceback.print_exception(error)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_first() -> None:
    """Where memory is short, the kernel shall take a rank, which is replaced, and not the agent.

    Making oneself likelier to be chosen needs no privilege (proc(5), oom_score_adj).
    """
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            own = int(file.read())
            file.seek(0)
            file.write(str(min(1000, own + RANK_BADNESS)))
    except (OSError, ValueError) as error:
        print(f"oom_score_adj stays as it is: {error}", file=sys.stderr, flush=True)


def _reap(agent: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(agent, ChildExited(pid, os.waitstatus_to_exitcode(status), os.WCOREDUMP(status)))


def _tell(agent: socket.socket, message: FromZygote) -> None:
    # A broken pipe means that the agent is gone; the main loop sees it next and ends.
    with contextlib.suppress(BrokenPipeError):
        agent.send(encoder.encode(message))


def _child(agent: socket.socket) -> int:
    """What a forked child does: a rank's work, or the preparation of a task's data."""
    from unicron_hpc.runtime.rank_main import run_rank
    from unicron_hpc.runtime.task_data import prepare_as_child

    return prepare_as_child() if os.environ.get(ROLE) == PREPARE_DATA else run_rank(agent)


def main() -> None:
    """Entry point: `python -m unicron_hpc.runtime.zygote FD`."""
    agent = socket.socket(fileno=int(sys.argv[1]))
    begun = time.monotonic()
    from unicron_hpc.runtime.lean_import import without_compiler

    with without_compiler():
        import unicron_hpc.runtime.prepare_data
        import unicron_hpc.runtime.rank_main  # noqa: F401  (imported to be warm in every child)
    serve(agent, _child, time.monotonic() - begun)


if __name__ == "__main__":
    main()

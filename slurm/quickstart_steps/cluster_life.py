"""The quickstart's own cluster: up, and down again whatever happens; two quickstarts never share one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from testcluster import clusters, state
from testcluster.api import Cluster
from testcluster.errors import ClusterError

from quickstart_steps.errors import QuickstartError

#: Four nodes that train and a spare, as the template asks for.
NODES = 5
_LOCK = "quickstart.lock"
_KEPT = "kept\n"


@contextlib.contextmanager
def running(name: str, *, keep: bool, say: Callable[[str], None]) -> Iterator[Cluster]:
    """A cluster that is up; it is taken down at the end unless `keep` and all went well.

    Parameters
    ----------
    name
        The cluster's name.
    keep
        Leave it up.
    say
        Takes a line about progress.
    """
    cluster = Cluster(name)
    folder = state.base_folder() / state.check_name(name)
    _make_way(folder, cluster, say)
    # From here on, whatever is in the folder is ours to take down.
    lock: int | None = None
    try:
        try:
            cluster.up(nodes=NODES)
        except ClusterError as error:
            raise QuickstartError(str(error), where="slurm/cluster up") from None
        lock = _take(folder)
        yield cluster
        if keep:
            (folder / _LOCK).write_text(_KEPT)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            with _undisturbed():
                say("taking the cluster down ...")
                cluster.down()
        if lock is not None:
            os.close(lock)


def save_logs(run_folder: Path, cluster: Cluster) -> Path:
    """Copy what explains a failure to a folder that outlives the cluster, and return that."""
    kept = Path(tempfile.mkdtemp(prefix="unicron-quickstart-"))
    if run_folder.is_dir():
        shutil.copytree(run_folder, kept / "run", ignore=shutil.ignore_patterns("*.key", "*.sock"))
    with contextlib.suppress(ClusterError, OSError):
        (kept / "slurmctld.log").write_text(cluster.call("log", "slurmctld"))
    return kept


def _make_way(folder: Path, cluster: Cluster, say: Callable[[str], None]) -> None:
    """Refuse a cluster that somebody uses; clear away what a killed quickstart left."""
    try:
        there = clusters.get(folder, say)
    except ClusterError:
        return  # nothing is up; `up` clears what may be left
    if not there.is_running():
        return
    name = there.known.name
    mark = folder / _LOCK
    if not mark.exists() or mark.read_text() == _KEPT:
        raise QuickstartError(
            "is up: kept by an earlier quickstart, or started by hand",
            where=f"cluster {name}",
            hint=f"Take it down: slurm/cluster down --name {name}\nor give another name: --name",
        )
    lock = _take(folder)
    say("clearing away what an earlier quickstart left")
    cluster.down()
    os.close(lock)


def _take(folder: Path) -> int:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise QuickstartError(
            "another quickstart uses it at this moment",
            where=f"cluster {folder.name}",
            hint="Wait for it, or give another name: --name",
        ) from None
    return descriptor


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no impatient second Ctrl-C interrupt the clearing up, here or in the commands it runs."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

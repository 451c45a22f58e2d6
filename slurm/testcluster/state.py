"""Where a cluster lives, what it wrote down about itself, and the lock that keeps two commands apart."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testcluster.errors import ClusterError

#: Set in the environment of everything that belongs to a cluster; its value is the cluster's folder.
MARK = "UNICRON_TEST_CLUSTER"
#: The default of --dir; set for what `exec` runs, so that slurm/cluster talks about the same cluster there.
DIR = "UNICRON_CLUSTER_DIR"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,15}\Z")
_FILE = "cluster.json"


class TakenDown(ClusterError):
    """The folder went away before it could be locked."""


@dataclass(slots=True)
class State:
    """What a cluster is, written before each thing it creates so that `down` finds it after a crash too."""

    name: str
    driver: str
    nodes: list[str]
    cpus_per_node: int
    up_finished: bool = False
    #: accounts made for this cluster, and the ones that commands run as
    user: str = ""
    admin: str = ""
    own_accounts: list[str] = field(default_factory=list)
    own_folder: bool = True
    #: Docker only
    suite: str = ""
    image: str = ""
    subnet: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    docker_socket: str = ""


def check_name(name: str) -> str:
    """Return the name if containers, accounts and folders can bear it."""
    if not _NAME.match(name):
        hint = "Use a small letter, then at most 15 of a-z, 0-9 and -."
        raise ClusterError(f"{name!r} cannot be a cluster's name", where="--name", hint=hint)
    return name


def base_folder() -> Path:
    """Return the folder in which clusters without --dir live: only its owner can write there."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # Root's runtime folder is closed to the plain account that runs the jobs.
    if os.geteuid() != 0 and runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "unicron-clusters"
    return Path(f"/tmp/unicron-clusters-{os.geteuid()}")


def make_base_folder() -> Path:
    """Create the base folder, and refuse one that somebody else put there."""
    folder = base_folder()
    folder.mkdir(mode=0o755, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise ClusterError(
            "exists and does not belong to you", where=str(folder), hint="Give another place by --dir."
        )
    folder.chmod(0o755)
    return folder


def read(folder: Path) -> State | None:
    """Return what the cluster in `folder` wrote down, or None where none is."""
    try:
        fields: dict[str, Any] = json.loads((folder / _FILE).read_text())
        return State(**fields)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        hint = f"Remove what is left with `slurm/cluster down --dir {folder}`."
        raise ClusterError(f"cannot be read: {error}", where=str(folder / _FILE), hint=hint) from None


def write(folder: Path, state: State) -> None:
    """Replace the written state as a whole."""
    beside = folder / f"{_FILE}.new"
    beside.write_text(json.dumps(asdict(state), indent=2) + "\n")
    beside.rename(folder / _FILE)


@contextlib.contextmanager
def locked(folder: Path, *, seconds: float = 180.0) -> Iterator[None]:
    """Hold the cluster's folder for this process alone; wait for another command to finish."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            raise TakenDown("is not there", where=str(folder)) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one before us may have removed the folder while we waited.
            if folder.exists() and os.fstat(descriptor).st_ino == folder.stat().st_ino:
                break
            os.close(descriptor)
            raise TakenDown("was taken down meanwhile", where=str(folder))
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise ClusterError("another slurm/cluster command holds it", where=str(folder)) from None
            time.sleep(0.1)
    try:
        yield
    finally:
        os.close(descriptor)

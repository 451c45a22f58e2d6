"""The Docker engine: the one that runs here, else one of our own, which leaves no trace outside its folders.

Ours has its own socket and data, makes no bridge and no firewall rule, and lives in a keeper, so that its
containers' processes are found even if it crashes. Images stay in the cache folder between clusters.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testcluster import health, keeper, mounts, packages, procs, state
from testcluster.errors import ClusterError

Say = Callable[[str], None]
#: Label of every container and network; its value is the cluster's folder.
LABEL = "unicron-test-cluster"
_KEEPER = "dockerd"


@dataclass(frozen=True, slots=True)
class Docker:
    """The docker command, bound to one engine: `host` as in DOCKER_HOST, empty for the default one."""

    host: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which to call docker."""
        return {**os.environ, "DOCKER_HOST": self.host} if self.host else dict(os.environ)

    def try_run(self, arguments: Sequence[str], *, seconds: float = 60.0) -> health.Answer:
        """Run a docker command and return whatever it gives back."""
        try:
            done = subprocess.run(
                [packages.program("docker") or "docker", *arguments],
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            return health.Answer(127, "", "there is no docker command")
        except subprocess.TimeoutExpired:
            return health.Answer(124, "", f"docker {arguments[0]} did not end within {seconds:g} s")
        return health.Answer(done.returncode, done.stdout, done.stderr)

    def run(self, arguments: Sequence[str], *, seconds: float = 60.0) -> str:
        """Run a docker command that must work; return its output without the final newline."""
        answer = self.try_run(arguments, seconds=seconds)
        if answer.code != 0:
            raise ClusterError(
                answer.err.strip() or f"exit code {answer.code}", where=f"docker {arguments[0]}"
            )
        return answer.out.strip()

    def answers(self) -> bool:
        """Tell whether the engine is there."""
        return self.try_run(["version", "--format", "{{.Server.Version}}"], seconds=20.0).code == 0


def folder() -> Path:
    """Return the folder of our own engine; no cluster's name starts with a dot."""
    return state.base_folder() / ".engine"


def data_folder() -> Path:
    """Return the folder where our own engine keeps its images between clusters."""
    cache = os.environ.get("XDG_CACHE_HOME", "") if os.geteuid() != 0 else ""
    return Path(cache or "/var/cache") / "unicron-clusters" / "docker"


def _own() -> Docker:
    return Docker(f"unix://{folder() / 'docker.sock'}")


def find() -> Docker | None:
    """Return the engine that runs here, ours or another; None where there is none."""
    for engine in (_own(), Docker("")):
        if (engine.host == "" or (folder() / "docker.sock").exists()) and engine.answers():
            return engine
    return None


def why_not() -> str:
    """Return in one sentence why no engine can be used here, or '' where one can."""
    if not packages.program("docker"):
        return "there is no docker command (Debian's package: docker.io)"
    if find() is not None:
        return ""
    if os.geteuid() != 0:
        return "no Docker engine answers, and only root can start one"
    if not packages.program("dockerd"):
        return "no Docker engine answers, and there is no dockerd to start (Debian's package: docker.io)"
    return ""


def ensure(say: Say, user: Path | None) -> Docker:
    """Return a running engine, started here if there is none.

    Parameters
    ----------
    say
        Receives progress, a line at a time.
    user
        Folder of the cluster that needs it until it calls `release`; None keeps ours until `stop`.
    """
    reason = why_not()
    if reason:
        raise ClusterError(reason, hint="See: slurm/cluster packages --driver docker")
    engine = find()
    if engine is not None and not engine.host:
        return engine
    state.make_base_folder()
    while True:
        for name in ("run", "log", "users"):
            (folder() / name).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(state.TakenDown), state.locked(folder()):
            # written under the lock, so that nobody's `release` stops the engine before we are counted
            _user_file(user).write_text(str(user or ""))
            return _start(say)


def _user_file(user: Path | None) -> Path:
    return folder() / "users" / (hashlib.sha256(str(user).encode()).hexdigest()[:16] if user else "keep")


def _start(say: Say) -> Docker:
    engine = _own()
    if keeper.read(folder(), _KEEPER) is None:
        say("no Docker engine runs here; starting one of our own")
        data_folder().mkdir(parents=True, exist_ok=True)
        mounts.unmount_below([folder(), data_folder()])
        (folder() / "run" / "docker.pid").unlink(missing_ok=True)
        command = [
            packages.program("dockerd"),
            f"--host={engine.host}",
            f"--data-root={data_folder()}",
            f"--exec-root={folder() / 'exec'}",
            f"--pidfile={folder() / 'run' / 'docker.pid'}",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
        ]
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        kept = {
            key: value for key, value in os.environ.items() if "proxy" in key.lower() or "SSL_CERT" in key
        }
        keeper.start(folder(), _KEEPER, command, environment={**kept, "PATH": path})
    deadline = time.monotonic() + 60.0
    while not engine.answers():
        if keeper.read(folder(), _KEEPER) is None or time.monotonic() > deadline:
            words = (folder() / "log" / f"{_KEEPER}.out").read_text(errors="replace").splitlines()[-8:]
            _stop_now()
            raise ClusterError("\n    ".join(["did not start. The end of its log:", *words]), where="dockerd")
        time.sleep(0.1)
    return engine


def release(user: Path, say: Say) -> None:
    """Take a cluster off the users of our own engine, and stop it with the last one."""
    if not folder().exists():
        return
    with contextlib.suppress(state.TakenDown), state.locked(folder()):
        _user_file(user).unlink(missing_ok=True)
        for file in (folder() / "users").iterdir():
            if file.name != "keep" and not Path(file.read_text()).exists():
                file.unlink()  # its cluster's folder was deleted by hand
        if not any((folder() / "users").iterdir()):
            if _own().answers():
                _remove_orphans(_own())
            _stop_now()
            say("stopped our Docker engine")


def remove_leftovers(docker: Docker, folder: Path) -> None:
    """Remove every container and network that carries the label of the cluster in `folder`."""
    label = f"--filter=label={LABEL}={folder}"
    containers = docker.run(["ps", "--all", "--quiet", label]).split()
    if containers:
        docker.run(["rm", "--force", "--volumes", *containers], seconds=120.0)
    networks = docker.run(["network", "ls", "--quiet", label]).split()
    if networks:
        docker.run(["network", "rm", *networks])


def _remove_orphans(docker: Docker) -> None:
    """Remove containers and networks of clusters whose folder is gone."""
    form = "--format={{.Label " + json.dumps(LABEL) + "}}"
    for kind in (["ps", "--all"], ["network", "ls"]):
        for text in set(docker.run([*kind, f"--filter=label={LABEL}", form]).split("\n")):
            if text and not Path(text).exists():
                remove_leftovers(docker, Path(text))


def stop(say: Say) -> None:
    """Stop our own engine and remove what it mounted; containers and images stay in its data."""
    if not folder().exists():
        say("no Docker engine of ours runs")
        return
    with state.locked(folder()):
        _stop_now()
    say("stopped our Docker engine")


def _stop_now() -> None:
    found = keeper.read(folder(), _KEEPER)
    if found is not None:
        daemons = [process for process in found.family().values() if process.name == "dockerd"]
        procs.send(daemons, signal.SIGTERM)
        deadline = time.monotonic() + 20.0
        while found.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        found.kill()
    mounts.unmount_below([folder(), data_folder()])
    shutil.rmtree(folder())
    with contextlib.suppress(OSError):  # clusters live in it
        folder().parent.rmdir()


def describe() -> str:
    """Return in one sentence which engine would be used."""
    engine = find()
    if engine is None:
        return why_not() or "no Docker engine runs; `up --driver docker` would start one of our own"
    return f"our own engine at {engine.host}" if engine.host else "the engine that runs on this machine"

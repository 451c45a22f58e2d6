"""A cluster as an object, for tests and benches: every call goes through the command that people use too."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from testcluster import state
from testcluster.errors import ClusterError

#: The command of people.
COMMAND = Path(__file__).resolve().parent.parent / "cluster"


def _environment() -> dict[str, str]:
    """Return our environment without the choice of another cluster."""
    return {key: value for key, value in os.environ.items() if key != state.DIR}


class Cluster:
    """A test cluster; a context manager that takes it down.

    Parameters
    ----------
    name
        Its name: at most 16 of a-z, 0-9 and -.
    folder
        Its own folder; None for the default one.
    """

    def __init__(self, name: str, *, folder: Path | None = None) -> None:
        self.name = name
        self._which = ["--name", name, *(["--dir", str(folder)] if folder else [])]
        self._shared: Path | None = None

    def command(self, verb: str, *arguments: str) -> list[str]:
        """Return the command line of `slurm/cluster VERB` for this cluster."""
        return [str(COMMAND), verb, *self._which, *arguments]

    def call(self, verb: str, *arguments: str, timeout: float = 120.0) -> str:
        """Run `slurm/cluster VERB` and return what it prints; raise ClusterError with its words."""
        done = subprocess.run(
            self.command(verb, *arguments),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
        if done.returncode != 0:
            raise ClusterError(done.stderr.strip() or f"exit code {done.returncode}", where=f"cluster {verb}")
        return done.stdout

    def up(
        self,
        *,
        nodes: int = 6,
        driver: str = "embedded",
        suite: str = "bookworm",
        cpus_per_node: int = 8,
        settings: Mapping[str, str] | None = None,
        timeout: float = 900.0,
    ) -> Cluster:
        """Start it; `settings` go over ours in slurm.conf. The first `docker` of a suite builds its image."""
        extra = [word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}")]
        self.call(
            "up",
            f"--nodes={nodes}",
            f"--driver={driver}",
            f"--suite={suite}",
            f"--cpus-per-node={cpus_per_node}",
            *extra,
            timeout=timeout,
        )
        return self

    def down(self) -> None:
        """Take it down; nothing where it is not up."""
        self.call("down")
        self._shared = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def shared_dir(self) -> Path:
        """The folder that all nodes share, owned by the plain user, at the same path on this machine."""
        if self._shared is None:
            self._shared = Path(self.call("shared-dir").strip())
        return self._shared

    def status(self) -> dict[str, Any]:
        """Return `slurm/cluster status --json`: name, driver, suite, folder, shared, user, admin, nodes."""
        told: dict[str, Any] = json.loads(self.call("status", "--json"))
        return told

    def node_states(self) -> dict[str, str]:
        """Return Slurm's state of each node, in capitals; `*` at its end where the node does not answer."""
        return {name: node["state"] for name, node in self.status()["nodes"].items()}

    def processes(self, node: str) -> dict[int, str] | None:
        """Return pid and name of each process of a node (Docker: as inside it); None for a dead node."""
        found = self.status()["nodes"][node]["processes"]
        return None if found is None else {int(pid): name for pid, name in found.items()}

    def kill_node(self, *nodes: str) -> None:
        """Kill every process of the nodes at once, one node after the other."""
        self.call("kill-node", *nodes)

    def pause_node(self, *nodes: str) -> None:
        """Stop every process of the nodes."""
        self.call("pause-node", *nodes)

    def resume_node(self, *nodes: str) -> None:
        """Let paused nodes go on."""
        self.call("resume-node", *nodes)

    def restore_node(self, *nodes: str) -> None:
        """Bring killed, paused or drained nodes back; returns when Slurm has them in service."""
        self.call("restore-node", *nodes, timeout=180.0)

    def cut_node(self, *nodes: str) -> None:
        """Take the nodes' network away (Docker only)."""
        self.call("cut-node", *nodes)

    def heal_node(self, *nodes: str) -> None:
        """Give cut nodes their network back (Docker only)."""
        self.call("heal-node", *nodes)

    def link_loss(self, *nodes: str, percent: float = 30.0) -> None:
        """Let the nodes' network lose packets (Docker only, needs root); 0 ends it."""
        self.call("link-loss", f"--percent={percent:g}", *nodes)

    def exec_command(self, argv: Sequence[str], *, node: str = "", admin: bool = False) -> list[str]:
        """Return the command line that runs `argv` inside; for those who start the process themselves."""
        where = [*(["--node", node] if node else []), *(["--admin"] if admin else [])]
        return self.command("exec", *where, "--", *argv)

    def exec(
        self,
        argv: Sequence[str],
        *,
        node: str = "",
        admin: bool = False,
        check: bool = True,
        timeout: float = 120.0,
        input: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the plain user on the login node, as the administrator, or on another node.

        Parameters
        ----------
        argv
            Program and arguments.
        node
            Node to run it on; the login node where empty.
        admin
            Run it as the account that may drain nodes.
        check
            Raise ClusterError, with the command's stderr, where the exit code is not 0.
        timeout
            Seconds; subprocess.TimeoutExpired after that.
        input
            Text for its standard input; nothing where None.
        cwd
            Folder to run it in; the cluster's shared folder where None.
        env
            Variables beside the login environment.
        """
        words = [*(["env", *(f"{key}={value}" for key, value in env.items())] if env else []), *argv]
        done = subprocess.run(
            self.exec_command(words, node=node, admin=admin),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=cwd or self.shared_dir,
            env=_environment(),
            **({"input": input} if input is not None else {"stdin": subprocess.DEVNULL}),
        )
        if check and done.returncode != 0:
            words_of_it = done.stderr.strip() or done.stdout.strip() or "it printed nothing"
            raise ClusterError(f"exit code {done.returncode}: {words_of_it}", where=" ".join(argv))
        return done

    def reset(self, *, timeout: float = 120.0) -> None:
        """Bring every node back and cancel every job, so that the next test finds the cluster as new."""
        told = self.status()
        self.restore_node(*told["nodes"])
        deadline = time.monotonic() + timeout
        while True:
            self.exec(["scancel", "--quiet", f"--user={told['user']}"], check=False)
            states = self.node_states()
            if all(found == "IDLE" for found in states.values()):
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"not idle {timeout:g} s after every job was cancelled: {states}", where=self.name
                )
            time.sleep(0.2)

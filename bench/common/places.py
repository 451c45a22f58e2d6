"""Where the benches run jobs: on an embedded Slurm cluster, or as plain processes without Slurm."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from common.processes import Deathwatch, descendants, signal_all
from common.watching import BenchError, Watched

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "slurm"))

from testcluster.api import Cluster  # noqa: E402
from testcluster.errors import ClusterError  # noqa: E402

__all__ = ["REPOSITORY", "ClusterError", "Local", "Place", "Slurm"]

#: A run that is told to end has this long, in seconds.
END_GRACE = 60.0
#: A command of the owner ends within this long, in seconds.
OWNER_LIMIT = 300.0


class Place(Protocol):
    """Somewhere to run jobs and to break things."""

    name: str

    def submit(self, train_yaml: Path, settings: Mapping[str, object]) -> Watched:
        """Submit a job; returns when it is taken, not when it runs."""
        ...

    def end(self, run: Watched) -> None:
        """Have a run end in good order; `restore` before the next one."""
        ...

    def kill(self, run: Watched) -> float:
        """Kill every process of a run at once; return the unix time at which they were dead."""
        ...

    def kill_node(self, run: Watched, node: str) -> float:
        """Kill every process of a node; return the unix time at which its agent was dead."""
        ...

    def as_owner(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of ours as the owner of the jobs, however it ends."""
        ...

    def restore(self) -> None:
        """Have all nodes back, and nothing else: what earlier runs wrote may be gone."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


def _words(train_yaml: Path, settings: Mapping[str, object]) -> list[str]:
    """The command line's part that both places share."""
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "unicron_hpc.cli.sbatch", "--json", *overrides, str(train_yaml)]


class Slurm:
    """The embedded cluster: real slurmctld, slurmds, srun; as root the jobs are a plain user's."""

    name = "embedded Slurm cluster"

    def __init__(self, nodes: int) -> None:
        self._cluster = Cluster(f"b{os.getpid()}")
        self._nodes = nodes
        self._jobs: dict[Path, str] = {}
        self._up()

    def _up(self) -> None:
        try:
            self._cluster.up(nodes=self._nodes)
        except BaseException:
            self._cluster.down()
            raise

    def submit(self, train_yaml: Path, settings: Mapping[str, object]) -> Watched:
        told = json.loads(self._cluster.exec(_words(train_yaml, settings), env=_environment()).stdout)
        run = Watched(Path(told["run_dir"]))
        self._jobs[run.folder] = str(told["job_id"])
        return run

    def end(self, run: Watched) -> None:
        self._cluster.exec(["scancel", self._jobs[run.folder]], check=False)
        deadline = time.monotonic() + END_GRACE
        while not run.of_type("job_finished") and time.monotonic() < deadline:
            time.sleep(0.1)

    def kill(self, run: Watched) -> float:
        watch = Deathwatch(run.agent_pid(run.coordinator))
        words = ["scancel", "--full", "--signal=KILL", self._jobs[run.folder]]
        return _dies(watch, self._cluster.exec_command(words))

    def kill_node(self, run: Watched, node: str) -> float:
        watch = Deathwatch(run.agent_pid(node))
        return _dies(watch, self._cluster.command("kill-node", node))

    def as_owner(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return self._cluster.exec(words, check=False, timeout=OWNER_LIMIT, env=_environment())

    def restore(self) -> None:
        # A new cluster is up in seconds. In the old one the first node stays COMPLETING for more than a
        # minute, since its slurmstepd waits that long for word from those on dead nodes.
        self._cluster.down()
        self._up()

    def close(self) -> None:
        self._cluster.down()


class Local:
    """`--cluster local`: the same supervisor as plain processes of this machine."""

    name = "plain processes, no Slurm"

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="unicron-bench-"))
        self._launchers: dict[Path, subprocess.Popen[bytes]] = {}

    def submit(self, train_yaml: Path, settings: Mapping[str, object]) -> Watched:
        command = [*_words(train_yaml, settings), "--cluster", "local"]
        with (self._folder / "launcher.log").open("ab") as log:
            launcher = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **_environment()},
            )
        assert launcher.stdout is not None  # asked for above
        ready, _, _ = select.select([launcher.stdout], [], [], 60)
        line = launcher.stdout.readline() if ready else b""
        if not line:
            launcher.kill()
            raise BenchError(f"the run did not start:\n{(self._folder / 'launcher.log').read_text()[-2000:]}")
        run = Watched(Path(json.loads(line)["run_dir"]))
        self._launchers[run.folder] = launcher
        return run

    def family(self, run: Watched) -> list[int]:
        """Return the pids of every process of the run."""
        return descendants(self._launchers[run.folder].pid)

    def end(self, run: Watched) -> None:
        launcher = self._launchers.pop(run.folder)
        launcher.terminate()
        try:
            launcher.wait(END_GRACE)
        except subprocess.TimeoutExpired:
            signal_all(descendants(launcher.pid), signal.SIGKILL)
            raise BenchError(f"the run does not end; see {run.folder}") from None

    def kill(self, run: Watched) -> float:
        launcher = self._launchers.pop(run.folder)
        watch = Deathwatch(run.agent_pid(run.coordinator))
        signal_all(descendants(launcher.pid), signal.SIGKILL)
        launcher.wait()
        return watch.wait(END_GRACE)

    def kill_node(self, run: Watched, node: str) -> float:
        agent = run.agent_pid(node)
        watch = Deathwatch(agent)
        signal_all(descendants(agent), signal.SIGKILL)
        return watch.wait(END_GRACE)

    def as_owner(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=OWNER_LIMIT,
            env={**os.environ, **_environment()},
        )

    def restore(self) -> None:
        """Nodes are started with the next run."""

    def close(self) -> None:
        for launcher in self._launchers.values():
            signal_all(descendants(launcher.pid), signal.SIGKILL)
            launcher.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _dies(watch: Deathwatch, command: Sequence[str]) -> float:
    """Run a command that kills, and return when the watched process was dead, not when the command ended."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        died = watch.wait(END_GRACE)
        _, words = process.communicate(timeout=END_GRACE)
    if process.returncode:
        raise BenchError(f"{' '.join(command)} failed: {words.strip()}")
    return died


def _environment() -> dict[str, str]:
    """What the package is found by, wherever the command starts."""
    return {"PYTHONPATH": str(REPOSITORY)}

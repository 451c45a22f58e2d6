"""The process that keeps one daemon: it starts it, and adopts whatever the daemon's family leaves behind.

Because it is a child subreaper, every process that ever comes from a node's slurmd stays below that node's
keeper, so that `kill-node` can find them all. It ends when the last of them has ended. Run by path, by
`start` below.
"""

from __future__ import annotations

import argparse
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    # Run by path, so the folder of the package's parent has to take the place of the package's own.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from testcluster import linux, mounts, procs
from testcluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Keeper:
    """A running keeper, as its pid file names it."""

    name: str
    pid: int
    start: int

    def is_alive(self) -> bool:
        """Tell whether the keeper still runs; a keeper runs as long as anything below it does."""
        return procs.is_alive(self.pid, self.start)

    def family(self) -> dict[int, procs.Process]:
        """Return the living processes below the keeper."""
        return procs.descendants(self.pid) if self.is_alive() else {}

    def kill(self) -> int:
        """Kill the whole family, then the keeper; return how many processes the family had."""
        count = procs.kill(self.family)
        deadline = time.monotonic() + 1.0
        while self.is_alive():  # it ends by itself once its last child is gone
            if time.monotonic() > deadline:
                procs.send([procs.Process(self.pid, 0, "", self.start, self.name)], signal.SIGKILL)
            time.sleep(0.01)
        return count


def read(folder: Path, name: str) -> Keeper | None:
    """Return the living keeper `name` of the cluster in `folder`, or None."""
    try:
        pid, start = (folder / "run" / f"{name}.keeper").read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    keeper = Keeper(name, int(pid), int(start))
    return keeper if keeper.is_alive() else None


def start(
    folder: Path,
    name: str,
    command: Sequence[str],
    *,
    environment: dict[str, str],
    namespace_of: int | None = None,
    covers: list[mounts.Cover] | None = None,
    user: str = "",
) -> Keeper:
    """Start a keeper that starts `command`, and return once the command has been started.

    Parameters
    ----------
    folder
        The cluster's folder; the keeper's pid file goes to run/, what the command prints to log/.
    name
        Name of the daemon, unique within the cluster.
    command
        The daemon in the foreground; empty for a keeper that only holds a mount namespace.
    environment
        The daemon's whole environment.
    namespace_of
        Pid of a process whose mount namespace is joined.
    covers
        The plan of a new mount namespace.
    user
        Account that the command runs as; empty for the caller's own.
    """
    pid_file, log = folder / "run" / f"{name}.keeper", folder / "log" / f"{name}.out"
    pid_file.unlink(missing_ok=True)
    arguments = [
        sys.executable,
        "-S",
        str(Path(__file__).resolve()),
        "--pid-file",
        str(pid_file),
        "--name",
        name,
    ]
    if namespace_of is not None:
        arguments += ["--namespace-of", str(namespace_of)]
    if covers is not None:
        arguments += ["--covers", mounts.dump(covers)]
    if user:
        arguments += ["--user", user]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*arguments, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
            cwd="/",
        )
    deadline = time.monotonic() + 20.0
    while (keeper := read(folder, name)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            words = log.read_text(errors="replace").strip()[-2000:] or "it printed nothing"
            raise ClusterError(f"could not be started: {words}", where=name)
        time.sleep(0.01)
    return keeper


def _main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    for option in ("--pid-file", "--name", "--covers", "--user"):
        parser.add_argument(option, default="")
    parser.add_argument("--namespace-of", type=int)
    parser.add_argument("command", nargs="*")
    options = parser.parse_args(argv)
    linux.set_process_name(f"keep-{options.name}")
    linux.become_subreaper()
    if options.covers:
        mounts.apply(mounts.load(options.covers))
    if options.namespace_of is not None:
        linux.enter_mount_namespace(options.namespace_of)

    def stop(_number: int, _frame: object) -> None:
        procs.kill(lambda: procs.descendants(os.getpid()))
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if options.command:
        identity: dict[str, object] = {}
        if options.user:
            entry = pwd.getpwnam(options.user)
            identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        subprocess.Popen(options.command, **identity)  # type: ignore[call-overload]
    me = procs.read_process(os.getpid())
    assert me is not None
    pid_file = Path(options.pid_file)
    beside = pid_file.with_suffix(".new")
    beside.write_text(f"{me.pid} {me.start}\n")
    beside.rename(pid_file)
    if not options.command:
        while True:
            signal.pause()
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 0
        code = os.waitstatus_to_exitcode(status)
        print(f"{time.strftime('%FT%T')} process {pid} of {options.name} ended with {code}", flush=True)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))

"""The embedded cluster: a real slurmctld and N slurmds side by side on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from testcluster import (
    accounts,
    cleanup,
    health,
    keeper,
    linux,
    login,
    mounts,
    packages,
    ports,
    procs,
    slurmconf,
    state,
)
from testcluster.errors import ClusterError

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
#: Length of the longest path of a Unix socket, less what we append to the cluster's folder.
_LONGEST_FOLDER = 107 - len("/munge/socket.2")


def _silent(_line: str) -> None:
    """Show nothing."""


class EmbeddedCluster:
    """One embedded cluster, running or to be started.

    Parameters
    ----------
    folder
        The cluster's folder.
    known
        What it wrote down about itself.
    say
        Receives progress, a line at a time.
    """

    def __init__(self, folder: Path, known: state.State, say: Callable[[str], None] = _silent) -> None:
        self.folder = folder
        self.known = known
        self.say = say

    # -- up and down ---------------------------------------------------------------------------------------

    def up(self, *, extra: dict[str, str], seconds: float = 60.0) -> None:
        """Start every daemon and wait until all nodes are idle; the folder is empty before."""
        packages.require("embedded")
        if len(str(self.folder)) > _LONGEST_FOLDER:
            raise ClusterError(
                "too long a path for a Unix socket in it",
                where=str(self.folder),
                hint=f"Give a folder of at most {_LONGEST_FOLDER} letters by --dir.",
            )
        self._make_folders()
        self._make_accounts()
        self._write_config(extra)
        self._start_namespace()
        self._check_python()
        self._start_munged()
        self._start(
            "slurmctld", [packages.program("slurmctld"), "-D", "-f", str(self.conf)], user=self.known.admin
        )
        for node in self.known.nodes:
            self._start_slurmd(node)
        self.say(f"started munged, slurmctld and {len(self.known.nodes)} slurmds")
        health.wait_in_service(
            self.run,
            self.known.nodes,
            seconds=seconds,
            say=self.say,
            alive=lambda: self._check_alive(self.daemons()),
        )
        self.known.up_finished = True
        state.write(self.folder, self.known)

    def down(self) -> None:
        """Do nothing: keepers, marked processes and accounts are found and removed by `cleanup.clear`."""

    def is_running(self) -> bool:
        """Tell whether any daemon of the cluster runs."""
        return any(keeper.read(self.folder, name) is not None for name in self.daemons())

    # -- making nodes fail ---------------------------------------------------------------------------------

    def kill_node(self, node: str) -> int:
        """Kill slurmd, slurmstepds and every task of a node at once, as a power cut; return how many."""
        found = keeper.read(self.folder, self._slurmd(node))
        if found is None:
            raise ClusterError(
                "is dead already", where=node, hint=f"Bring it back: slurm/cluster restore-node {node}"
            )
        return found.kill()

    def pause_node(self, node: str) -> int:
        """Stop every process of a node, as a machine that hangs; return how many."""
        return len(procs.freeze(self._living(node).family))

    def resume_node(self, node: str) -> None:
        """Let a paused node go on."""
        procs.thaw(self._living(node).family)

    def restore_node(self, node: str, *, seconds: float = 60.0) -> None:
        """Start a killed node's slurmd again and have Slurm take the node back, also from DRAIN."""
        name = self._slurmd(node)
        started = 0.0
        found = keeper.read(self.folder, name)
        if found is not None:
            procs.thaw(found.family)
            if not any(process.name == "slurmd" for process in found.family().values()):
                found.kill()  # slurmd ended by itself and left tasks behind
                found = None
        if found is None:
            started = time.time()
            self._start_slurmd(node)
        health.wait_registered(
            self.run, node, since=started, seconds=seconds, alive=lambda: self._check_alive([name])
        )
        health.return_to_service(
            self.run, node, seconds=seconds, say=self.say, alive=lambda: self._check_alive([name])
        )

    def cut_node(self, node: str) -> None:
        """Refuse: embedded nodes share one network."""
        hint = "Use a cluster of --driver docker, or pause-node for a node that is silent."
        raise ClusterError(
            "embedded nodes share this machine's network, which cannot be cut for one", where=node, hint=hint
        )

    heal_node = cut_node

    def link_loss(self, node: str, percent: float) -> str:
        """Refuse, for the same reason."""
        self.cut_node(node)
        return ""

    # -- looking and talking -------------------------------------------------------------------------------

    @property
    def conf(self) -> Path:
        """Path of slurm.conf."""
        return self.folder / "etc" / "slurm.conf"

    @property
    def shared(self) -> Path:
        """The folder in which the plain user may write, visible to all nodes."""
        return self.folder / "shared"

    def daemons(self) -> list[str]:
        """Return the names of the daemons a whole cluster has."""
        return ["munged", "slurmctld", *(f"slurmd-{node}" for node in self.known.nodes)]

    def exports(self) -> dict[str, str]:
        """Return the variables that make Slurm's commands talk to this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    def node_processes(self, node: str) -> dict[int, str] | None:
        """Return pid and name of every process of a node, None for a dead one."""
        found = keeper.read(self.folder, self._slurmd(node))
        return (
            None if found is None else {pid: process.name for pid, process in sorted(found.family().items())}
        )

    def address(self, node: str) -> str:
        """Return the address at which a node is reached."""
        del node
        return "127.0.0.1"

    def log(self, daemon: str) -> str:
        """Return the log of `slurmctld`, `munged`, or a node's slurmd."""
        name = daemon if daemon in ("slurmctld", "munged") else self._slurmd(daemon)
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")

    def run(self, command: Sequence[str]) -> health.Answer:
        """Run one of Slurm's commands as root, or as the plain account that started the cluster."""
        environment = self._environment() | {"TZ": "UTC"}
        try:
            done = subprocess.run(
                [packages.program(command[0]), *command[1:]],
                env=environment,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return health.Answer(124, "", f"{command[0]} did not answer within 30 s")
        return health.Answer(done.returncode, done.stdout, done.stderr)

    def execute(self, command: Sequence[str], *, node: str, admin: bool) -> int:
        """Run `command` in place of this process, so that signals and exit code need no forwarding."""
        self.become(command, node=node, admin=admin)

    def become(self, command: Sequence[str], *, node: str, admin: bool) -> NoReturn:
        """Turn this process into `command` run as the plain user or the administrator; never returns."""
        if node and self.node_processes(node) is None:
            raise ClusterError(
                "is dead", where=node, hint=f"Bring it back: slurm/cluster restore-node {node}"
            )
        account = self._account(self.known.admin if admin else self.known.user)
        where = os.getcwd()
        environment = login.environment(
            account,
            _REPOSITORY,
            {state.MARK: str(self.folder), state.DIR: str(self.folder), **self.exports()},
        )
        if node:
            environment["SLURMD_NODENAME"] = node
        if os.geteuid() == 0:
            if (holder := keeper.read(self.folder, "namespace")) is not None:
                linux.enter_mount_namespace(holder.pid)
            accounts.become(account)
        login.replace_process(command, environment, [where, str(account.home), "/"])

    # -- details -------------------------------------------------------------------------------------------

    def _make_folders(self) -> None:
        for name in ("etc", "run", "log", "spool", "state", "munge", "shared"):
            (self.folder / name).mkdir()
        for node in self.known.nodes:
            (self.folder / "spool" / node).mkdir()

    def _make_accounts(self) -> None:
        if os.geteuid() != 0:
            self.known.user = self.known.admin = accounts.current().name
            return
        names = cleanup.account_names(self.known.name)
        self.known.user, self.known.admin = names
        state.write(self.folder, self.known)
        (self.folder / "home").mkdir()
        user, admin = (accounts.create(name, self.known.name, self.folder / "home" / name) for name in names)
        os.chown(self.shared, user.uid, user.gid)
        for owned in ("state", "run", "log"):
            os.chown(self.folder / owned, admin.uid, admin.gid)

    def _account(self, name: str) -> accounts.Account:
        account = accounts.find(name)
        if account is None:
            hint = "Take the cluster down and up again."
            raise ClusterError(f"its account {name} is gone", where=self.known.name, hint=hint)
        return account

    def _write_config(self, extra: dict[str, str]) -> None:
        version = slurmconf.version_of(
            subprocess.run(
                [packages.program("slurmd"), "-V"], capture_output=True, text=True, timeout=30, check=True
            ).stdout
        )
        host = socket.gethostname().partition(".")[0]
        controller, *rest = ports.free(1 + len(self.known.nodes))
        nodes = [
            slurmconf.Node(name, host, "127.0.0.1", port)
            for name, port in zip(self.known.nodes, rest, strict=True)
        ]
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        settings = slurmconf.Settings(
            cluster=self.known.name,
            controller_host=host,
            controller_address="127.0.0.1",
            controller_port=controller,
            nodes=nodes,
            cpus_per_node=self.known.cpus_per_node,
            memory_per_node=memory,
            slurm_user=self.known.admin,
            slurmd_user=accounts.current().name,
            munge_socket=str(self.folder / "munge" / "socket"),
            state=str(self.folder / "state"),
            spool=str(self.folder / "spool"),
            run=str(self.folder / "run"),
            log=str(self.folder / "log"),
            extra=extra,
        )
        self.conf.write_text(slurmconf.slurm_conf(settings))
        self.conf.with_name("cgroup.conf").write_text(slurmconf.cgroup_conf(version))

    def _python(self) -> Path | None:
        python = _REPOSITORY / ".venv" / "bin" / "python"
        return python if python.exists() else None

    def _start_namespace(self) -> None:
        if os.geteuid() != 0:
            return
        python = self._python()
        needed = [_REPOSITORY, self.folder, *(mounts.needed_by_python(python) if python else [])]
        covers = mounts.plan(needed)
        if covers:
            folders = ", ".join(cover.folder for cover in covers)
            self.say(f"{folders} is closed to plain users; the cluster sees the needed part of it only")
            keeper.start(self.folder, "namespace", [], environment=self._environment(), covers=covers)

    def _check_python(self) -> None:
        """Find out now, not in a job, whether the plain user can run the repository's Python."""
        python = self._python()
        if python is None or os.geteuid() != 0:
            return
        child = os.fork()
        if child == 0:  # pragma: no cover - replaced by another program
            try:
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
                self.become([str(python), "-c", "import sys, json, socket"], node="", admin=False)
            finally:
                os._exit(126)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise ClusterError(
                f"the account {self.known.user} cannot run it",
                where=str(python),
                hint="Are its files readable for everybody? (chmod -R o+rX on the clone and its Python)",
            )

    def _start_munged(self) -> None:
        munge = self.folder / "munge"
        key = munge / "key"
        descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(128))
        socket_path = munge / "socket"
        self._start(
            "munged",
            [
                packages.program("munged"),
                "--foreground",
                "--force",
                f"--socket={socket_path}",
                f"--key-file={key}",
                f"--pid-file={munge / 'pid'}",
                f"--log-file={self.folder / 'log' / 'munged.log'}",
                f"--seed-file={munge / 'seed'}",
                "--num-threads=2",
            ],
        )
        deadline = time.monotonic() + 15.0
        while not socket_path.exists():
            self._check_alive(["munged"])
            if time.monotonic() > deadline:
                raise ClusterError(f"made no socket within 15 s: {self._tail('munged')}", where="munged")
            time.sleep(0.02)

    def _start_slurmd(self, node: str) -> None:
        command = [packages.program("slurmd"), "-D", "-N", node, "-f", str(self.conf)]
        self._start(self._slurmd(node), command)

    def _start(self, name: str, command: list[str], *, user: str = "") -> None:
        holder = keeper.read(self.folder, "namespace")
        keeper.start(
            self.folder,
            name,
            command,
            environment=self._environment(),
            namespace_of=holder.pid if holder else None,
            user=user if os.geteuid() == 0 else "",
        )

    def _environment(self) -> dict[str, str]:
        """Return the environment of daemons: nothing of the caller's, so that no job of his leaks in."""
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            state.MARK: str(self.folder),
            **self.exports(),
        }

    def _slurmd(self, node: str) -> str:
        if node not in self.known.nodes:
            raise ClusterError("no such node", where=node, hint=f"There are {', '.join(self.known.nodes)}.")
        return f"slurmd-{node}"

    def _living(self, node: str) -> keeper.Keeper:
        found = keeper.read(self.folder, self._slurmd(node))
        if found is None:
            raise ClusterError(
                "is dead", where=node, hint=f"Bring it back: slurm/cluster restore-node {node}"
            )
        return found

    def _tail(self, daemon: str) -> str:
        texts = []
        for suffix in ("out", "log"):
            with contextlib.suppress(OSError):
                texts += (
                    (self.folder / "log" / f"{daemon}.{suffix}").read_text(errors="replace").splitlines()[-8:]
                )
        return "\n    ".join(["", *texts]) if texts else "it wrote no log"

    def _check_alive(self, daemons: Sequence[str]) -> None:
        for daemon in daemons:
            found = keeper.read(self.folder, daemon)
            if found is None or not found.family():
                raise ClusterError(f"ended by itself. The end of its log:{self._tail(daemon)}", where=daemon)

"""The cluster in Docker: a container per node on a network of their own, and one more for slurmctld."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testcluster import attach, engine, health, image, lossy, mounts, slurmconf, state
from testcluster.errors import ClusterError

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
USER, ADMIN = "unicron-user", "unicron-admin"
#: Name of the container with slurmctld, and its place in the network; nodes follow.
LOGIN, _LOGIN_PLACE = "login", 10


class DockerCluster:
    """One cluster in containers, running or to be started.

    Parameters
    ----------
    folder
        The cluster's folder on this machine.
    known
        What it wrote down about itself.
    say
        Receives progress, a line at a time.
    """

    def __init__(self, folder: Path, known: state.State, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.known = known
        self.say = say
        self.docker = engine.Docker(known.docker_socket)
        #: Prefix of container names, and the network's name: short enough for a network interface.
        self.key = "uc" + hashlib.sha256(str(folder).encode()).hexdigest()[:8]

    # -- up and down ---------------------------------------------------------------------------------------

    def up(self, *, extra: dict[str, str], seconds: float = 60.0) -> None:
        """Start every container and wait until all nodes are idle; the folder is empty before."""
        self.docker = engine.ensure(self.say, self.folder)
        self.known.docker_socket = self.docker.host
        state.write(self.folder, self.known)
        self.known.image = image.ensure(self.docker, self.known.suite, self.folder, self.say)
        for name in ("etc", "log", "shared", "munge"):
            (self.folder / name).mkdir()
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self._make_network()
        self.known.user, self.known.admin = USER, ADMIN
        state.write(self.folder, self.known)
        self._write_config(extra)
        self._start_container(LOGIN, ["slurmctld"])
        # Others must not write here, but these two, known by number, own what is in the containers.
        self._in(LOGIN, ["chown", USER, str(self.shared)])
        for node in self.known.nodes:
            self._start_container(node, ["slurmd", node])
        self.say(f"started {1 + len(self.known.nodes)} containers of {self.known.image}")
        self._check_python()
        health.wait_in_service(
            self.run,
            self.known.nodes,
            seconds=seconds,
            say=self.say,
            alive=lambda: self._check_alive([LOGIN, *self.known.nodes]),
        )
        self.known.up_finished = True
        state.write(self.folder, self.known)

    def down(self) -> None:
        """Remove containers, network and what they wrote; our engine is started for that where it crashed."""
        if not self.docker.answers():
            if not self.known.docker_socket or not engine.data_folder().exists():
                engine.release(self.folder, self.say)
                return
            self.docker = engine.ensure(self.say, self.folder)
        for name in (LOGIN, *self.known.nodes):
            if self._container_state(name) == "paused":
                self.docker.try_run(["unpause", self._container(name)])
        engine.remove_leftovers(self.docker, self.folder)
        if self.known.image and any((self.folder / name).exists() for name in ("shared", "log")):
            # written by accounts of the containers, so a plain user of this machine could not remove it
            self.docker.run(
                [
                    "run",
                    "--rm",
                    "--network=none",
                    f"--volume={self.folder}:/cluster",
                    self.known.image,
                    "find",
                    "/cluster/shared",
                    "/cluster/log",
                    "-mindepth",
                    "1",
                    "-delete",
                ]
            )
        engine.release(self.folder, self.say)

    def is_running(self) -> bool:
        """Tell whether any container of the cluster runs."""
        return any(
            self._container_state(name) in ("running", "paused") for name in (LOGIN, *self.known.nodes)
        )

    # -- making nodes fail ---------------------------------------------------------------------------------

    def kill_node(self, node: str) -> int:
        """Kill a node's container with everything in it; return how many processes there were."""
        if self._container_state(self._known(node)) not in ("running", "paused"):
            raise ClusterError(
                "is dead already", where=node, hint=f"Bring it back: slurm/cluster restore-node {node}"
            )
        count = len(self.docker.run(["top", self._container(node)]).splitlines()) - 1
        if self._container_state(node) == "paused":
            # a frozen process cannot die; killing it first means that it runs no code when it thaws
            self.docker.try_run(["kill", self._container(node)], seconds=20.0)
            self.docker.try_run(["unpause", self._container(node)])
        if self._container_state(node) == "running":
            self.docker.run(["kill", self._container(node)])
        return count

    def pause_node(self, node: str) -> int:
        """Freeze every process of a node, as a machine that hangs; return how many."""
        count = len(self.docker.run(["top", self._container(self._known(node))]).splitlines()) - 1
        self.docker.run(["pause", self._container(node)])
        return count

    def resume_node(self, node: str) -> None:
        """Let a paused node go on."""
        self.docker.run(["unpause", self._container(self._known(node))])

    def restore_node(self, node: str, *, seconds: float = 60.0) -> None:
        """Start a killed node's container again and have Slurm take the node back, also from DRAIN."""
        found = self._container_state(self._known(node))
        started = 0.0
        if found == "paused":
            self.resume_node(node)
        elif found != "running":
            started = time.time()
            self.docker.run(["start", self._container(node)])
        if not self._is_connected(node):
            self.heal_node(node)
            # slurmctld rarely asks again a node that it has given up; one that starts tells it at once.
            started = time.time()
            self.docker.run(["restart", "--time=0", self._container(node)])
        if os.geteuid() == 0:
            self.link_loss(node, 0)
        health.wait_registered(
            self.run, node, since=started, seconds=seconds, alive=lambda: self._check_alive([node])
        )
        health.return_to_service(
            self.run, node, seconds=seconds, say=self.say, alive=lambda: self._check_alive([node])
        )

    def cut_node(self, node: str) -> None:
        """Take a node's network away; its processes live on."""
        self.docker.run(["network", "disconnect", self.key, self._container(self._known(node))])

    def heal_node(self, node: str) -> None:
        """Connect a cut node again, at the same address."""
        self.docker.run(["network", "connect", "--ip", self.address(node), self.key, self._container(node)])

    def link_loss(self, node: str, percent: float) -> str:
        """Have a node's network lose packets, `percent` of them; return what does it."""
        told = self.docker.run(["inspect", "--format", "{{.State.Pid}}", self._container(self._known(node))])
        if told == "0":
            raise ClusterError("its container does not run", where=node)
        return lossy.set_loss(int(told), percent, node)

    # -- looking and talking -------------------------------------------------------------------------------

    @property
    def shared(self) -> Path:
        """The folder in which the plain user may write, at the same path in every container and here."""
        return self.folder / "shared"

    def address(self, node: str) -> str:
        """Return a node's address in the cluster's network."""
        return self.known.addresses[self._known(node)]

    def exports(self) -> dict[str, str]:
        """Refuse: this machine has no part in the containers' network."""
        raise ClusterError(
            "Slurm's commands on this machine cannot talk to a cluster in Docker",
            where=self.known.name,
            hint="Run them inside: slurm/cluster exec -- sinfo",
        )

    def node_processes(self, node: str) -> dict[int, str] | None:
        """Return pid (as in the container) and name of every process of a node; None for a dead one."""
        found = self._container_state(self._known(node))
        if found != "running":
            return {} if found == "paused" else None
        listed = self.docker.run(["exec", self._container(node), "ps", "-e", "-o", "pid=,comm="])
        pairs = (line.split(None, 1) for line in listed.splitlines())
        return {int(pid): name for pid, name in pairs if name != "ps"}

    def log(self, daemon: str) -> str:
        """Return the log of `slurmctld` or of a node's slurmd."""
        name = "slurmctld.log" if daemon in ("slurmctld", LOGIN) else f"slurmd-{self._known(daemon)}.log"
        return self._in(LOGIN, ["cat", str(self.folder / "log" / name)])

    def run(self, command: Sequence[str]) -> health.Answer:
        """Run one of Slurm's commands as administrator on the login node."""
        return self.docker.try_run(
            ["exec", "--user", ADMIN, "--env", "TZ=UTC", self._container(LOGIN), *command], seconds=30.0
        )

    def execute(self, command: Sequence[str], *, node: str, admin: bool) -> int:
        """Run a command in a container and return its exit code; pass signals on, which docker omits."""
        name = self._known(node) if node else LOGIN
        if self._container_state(name) != "running":
            raise ClusterError(
                "its container does not run",
                where=name,
                hint=f"Bring it back: slurm/cluster restore-node {name}",
            )
        user = ADMIN if admin else USER
        return attach.run(
            self.docker, self._container(name), command, user, self._login_environment(user, node)
        )

    # -- details -------------------------------------------------------------------------------------------

    def _known(self, node: str) -> str:
        if node not in self.known.nodes:
            raise ClusterError("no such node", where=node, hint=f"There are {', '.join(self.known.nodes)}.")
        return node

    def _container(self, name: str) -> str:
        return f"{self.key}-{name}"

    def _in(self, name: str, command: Sequence[str]) -> str:
        return self.docker.run(["exec", self._container(name), *command])

    def _container_state(self, name: str) -> str:
        return self.docker.try_run(
            ["inspect", "--format", "{{.State.Status}}", self._container(name)]
        ).out.strip()

    def _is_connected(self, node: str) -> bool:
        told = self.docker.run(
            ["inspect", "--format", "{{json .NetworkSettings.Networks}}", self._container(node)]
        )
        return f'"{self.key}"' in told

    def _make_network(self) -> None:
        """Create the network on the first range of addresses that nobody else uses."""
        taken = _routed_networks()
        start = int(self.key[2:6], 16)
        refusal = ""
        for attempt in range(256):
            subnet = ipaddress.ip_network(f"10.{130 + (start + attempt) % 100}.{start % 251}.0/24")
            if any(subnet.overlaps(other) for other in taken):
                continue
            answer = self.docker.try_run(
                [
                    "network",
                    "create",
                    "--internal",
                    f"--subnet={subnet}",
                    f"--label={engine.LABEL}={self.folder}",
                    "--opt",
                    f"com.docker.network.bridge.name={self.key}",
                    self.key,
                ]
            )
            if answer.code == 0:
                self.known.subnet = str(subnet)
                names = [LOGIN, *self.known.nodes]
                self.known.addresses = {
                    name: str(subnet[_LOGIN_PLACE + place]) for place, name in enumerate(names)
                }
                return
            refusal = answer.err.strip()
            if "overlap" not in refusal.lower():
                break
        raise ClusterError(refusal or "no free range of addresses", where="docker network create")

    def _write_config(self, extra: dict[str, str]) -> None:
        told = self.docker.run(["run", "--rm", "--network=none", self.known.image, "slurmd", "-V"])
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        settings = slurmconf.Settings(
            cluster=self.known.name,
            controller_host=LOGIN,
            controller_address=self.known.addresses[LOGIN],
            controller_port=6817,
            nodes=[slurmconf.Node(node, node, self.known.addresses[node], 6818) for node in self.known.nodes],
            cpus_per_node=self.known.cpus_per_node,
            memory_per_node=memory,
            slurm_user=ADMIN,
            slurmd_user="root",
            munge_socket="/run/munge/munge.socket.2",
            state="/var/spool/slurmctld",
            spool="/var/spool/slurmd",
            run="/run/slurm",
            log=str(self.folder / "log"),
            extra=extra,
        )
        (self.folder / "etc" / "slurm.conf").write_text(slurmconf.slurm_conf(settings))
        (self.folder / "etc" / "cgroup.conf").write_text(slurmconf.cgroup_conf(slurmconf.version_of(told)))
        (self.folder / "log").chmod(0o1777)  # slurmctld's account and root both write here

    def _volumes(self) -> list[str]:
        python = _REPOSITORY / ".venv" / "bin" / "python"
        volumes = [
            f"{self.folder / 'etc'}:/etc/slurm:ro",
            f"{self.folder / 'munge' / 'key'}:/run/cluster-key:ro",
            f"{self.shared}:{self.shared}",
            f"{self.folder / 'log'}:{self.folder / 'log'}",
            f"{_REPOSITORY}:{_REPOSITORY}:ro",
        ]
        if python.exists():
            volumes += [
                f"{source}:{target}:ro" for target, source in mounts.places_of_python(python, _REPOSITORY)
            ]
        return volumes

    def _start_container(self, name: str, command: list[str]) -> None:
        hosts = [f"--add-host={host}:{address}" for host, address in self.known.addresses.items()]
        self.docker.run(
            [
                "run",
                "--detach",
                "--init",
                "--cap-add=SYS_PTRACE",
                f"--name={self._container(name)}",
                f"--hostname={name}",
                f"--network={self.key}",
                f"--ip={self.known.addresses[name]}",
                f"--label={engine.LABEL}={self.folder}",
                "--shm-size=256m",
                "--stop-timeout=2",
                *hosts,
                *(f"--volume={volume}" for volume in self._volumes()),
                self.known.image,
                "/opt/cluster/node",
                *command,
            ]
        )

    def _login_environment(self, user: str, node: str) -> dict[str, str]:
        path = f"{_REPOSITORY}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        kept = {
            key: value for key, value in os.environ.items() if key.startswith("UNICRON_") or key == "TERM"
        }
        for ours in (state.MARK, state.DIR):
            kept.pop(ours, None)
        own = {
            "PATH": path,
            "HOME": f"/home/{user}",
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "SLURM_CONF": "/etc/slurm/slurm.conf",
        }
        return kept | own | ({"SLURMD_NODENAME": node} if node else {})

    def _check_python(self) -> None:
        """Find out now, not in a job, whether the plain user can run the repository's Python inside."""
        python = _REPOSITORY / ".venv" / "bin" / "python"
        if python.exists():
            answer = self.docker.try_run(
                [
                    "exec",
                    "--user",
                    USER,
                    self._container(LOGIN),
                    str(python),
                    "-c",
                    "import sys, json, socket, ssl, sqlite3",
                ]
            )
            if answer.code != 0:
                raise ClusterError(
                    f"does not run in the container: {answer.err.strip()[-600:]}",
                    where=str(python),
                    hint="Are its files readable for everybody? (chmod -R o+rX on clone and Python)",
                )

    def _check_alive(self, names: Sequence[str]) -> None:
        for name in names:
            if self._container_state(name) != "running":
                words = self.docker.try_run(["logs", "--tail=8", self._container(name)])
                told = "\n    ".join(["", *(words.out + words.err).splitlines()])
                raise ClusterError(f"its container ended by itself. Its last words:{told}", where=name)


def _routed_networks() -> list[ipaddress.IPv4Network]:
    """Return the networks to which this machine has routes, the default route left out."""
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        target, mask = (int.from_bytes(bytes.fromhex(fields[column]), "little") for column in (1, 7))
        if mask:
            found.append(ipaddress.IPv4Network((target, mask.bit_count())))
    return found

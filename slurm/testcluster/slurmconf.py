"""slurm.conf and cgroup.conf of a test cluster, valid for Slurm 22.05 up to 24.11 and later."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from testcluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Node:
    """A compute node as slurm.conf names it."""

    name: str
    host: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration of one cluster depends on; paths are absolute."""

    cluster: str
    controller_host: str
    controller_address: str
    controller_port: int
    nodes: Sequence[Node]
    cpus_per_node: int
    memory_per_node: int
    slurm_user: str
    slurmd_user: str
    munge_socket: str
    state: str
    spool: str
    run: str
    log: str
    extra: Mapping[str, str] = field(default_factory=dict)


_KEY = re.compile(r"[A-Za-z]+\Z")


def parse_extra(settings: Sequence[str]) -> dict[str, str]:
    """Read `KEY=VALUE` options that go over ours in slurm.conf."""
    parsed = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not _KEY.match(key) or "\n" in value:
            raise ClusterError(
                "not of the form KEY=VALUE", where=f"--set {setting}", hint="As in slurm.conf(5)."
            )
        parsed[key] = value
    return parsed


def slurm_conf(settings: Settings) -> str:
    """Render slurm.conf.

    The time limits are short so that failures show soon: SlurmdTimeout seconds of silence make a node DOWN.
    """
    general = {
        "ClusterName": settings.cluster,
        "SlurmctldHost": f"{settings.controller_host}({settings.controller_address})",
        "SlurmctldPort": str(settings.controller_port),
        "SlurmUser": settings.slurm_user,
        "SlurmdUser": settings.slurmd_user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={settings.munge_socket}",
        "StateSaveLocation": settings.state,
        "SlurmdSpoolDir": f"{settings.spool}/%n",
        "SlurmctldPidFile": f"{settings.run}/slurmctld.pid",
        "SlurmdPidFile": f"{settings.run}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{settings.log}/slurmctld.log",
        "SlurmdLogFile": f"{settings.log}/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "PropagateResourceLimits": "NONE",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        # believe the file's CPUs and memory: all embedded nodes share one machine
        "SlurmdParameters": "config_overrides",
        "SchedulerParameters": "bf_interval=3,batch_sched_delay=0,sched_min_interval=0",
        "ReturnToService": "1",
        "SlurmdTimeout": "20",
        "SlurmctldTimeout": "30",
        "MessageTimeout": "5",
        "BatchStartTimeout": "15",
        "InactiveLimit": "0",
        "KillWait": "5",
        "CompleteWait": "0",
        "UnkillableStepTimeout": "15",
        "WaitTime": "0",
        "MinJobAge": "7200",
    }
    wanted = {key.lower(): (key, value) for key, value in general.items()}
    wanted |= {key.lower(): (key, value) for key, value in settings.extra.items()}
    lines = [f"{key}={value}" for key, value in wanted.values()]
    shape = (
        f"CPUs={settings.cpus_per_node} Boards=1 SocketsPerBoard=1 CoresPerSocket={settings.cpus_per_node} "
        f"ThreadsPerCore=1 RealMemory={settings.memory_per_node} State=UNKNOWN"
    )
    lines += [
        f"NodeName={node.name} NodeHostname={node.host} NodeAddr={node.address} Port={node.port} {shape}"
        for node in settings.nodes
    ]
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def version_of(words: str) -> tuple[int, int]:
    """Read major and minor version from what `slurmd -V` prints."""
    match = re.search(r"(\d+)\.(\d+)", words)
    if match is None:
        raise ClusterError(f"no version in {words.strip()!r}", where="slurmd -V")
    return int(match[1]), int(match[2])


def cgroup_conf(version: tuple[int, int]) -> str:
    """Render cgroup.conf: no control groups at all, so that no privilege is needed.

    22.05 loads the plugin only where another one asks for it and does not know `disabled`; newer ones insist
    on a working one unless it is disabled.
    """
    return "CgroupPlugin=disabled\n" if version >= (23, 2) else "CgroupAutomount=no\n"

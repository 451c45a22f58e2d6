"""Which address and interface of this node the others can reach."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping

from unicron_hpc.errors import UnicronError

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915


def own_address(environment: Mapping[str, str]) -> str:
    """The address of this node on the way to the node where srun ran.

    Asking the kernel's routing table (a connected UDP socket sends nothing) avoids what host names resolve to
    on many clusters: 127.0.1.1, or a management network.

    Parameters
    ----------
    environment
        Slurm's variables of the step; without `SLURM_LAUNCH_NODE_IPADDR` (no Slurm) it is the loopback.

    Raises
    ------
    UnicronError
        When there is no route to that node.
    """
    launcher = environment.get("SLURM_LAUNCH_NODE_IPADDR", "")
    if not launcher:
        return LOOPBACK
    family = socket.AF_INET6 if ":" in launcher else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((launcher, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UnicronError(
            f"no route to {launcher}, where the job step was started: {error}",
            where="SLURM_LAUNCH_NODE_IPADDR",
            hint="Set slurm.setup to export SLURM_LAUNCH_NODE_IPADDR with an address that all nodes reach.",
        ) from error


def interface_of(address: str) -> str | None:
    """Name of the interface that has this IPv4 address, or None when it cannot be told."""
    wanted = ipaddress.ip_address(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if ipaddress.ip_address(answer[20:24]) == wanted:
                return name
    return None

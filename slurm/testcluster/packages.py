"""Which packages of the distribution a test cluster needs, and which of them are missing here."""

from __future__ import annotations

import os
import shutil

from testcluster.errors import ClusterError

_SLURM = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sinfo": "slurm-client", "munged": "munge"}
_DOCKER = {
    "docker": "docker.io",
    "dockerd": "docker.io",
    "iptables": "iptables",
    "ip": "iproute2",
    "debootstrap": "debootstrap",
}
#: Package of each program, per driver.
NEEDED = {"embedded": _SLURM, "docker": _DOCKER}


def program(name: str) -> str:
    """Return the path of a program, also where a plain user's PATH leaves the sbin folders out; else ''."""
    folders = (
        os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    )
    return shutil.which(name, path=folders) or ""


def needed(driver: str) -> list[str]:
    """Return the packages that the driver needs."""
    return list(dict.fromkeys(NEEDED[driver].values()))


def missing(driver: str) -> list[str]:
    """Return the packages whose programs are not found here."""
    return list(dict.fromkeys(package for name, package in NEEDED[driver].items() if not program(name)))


def require(driver: str) -> None:
    """Raise an error that says what to install where something is missing."""
    absent = missing(driver)
    if absent:
        raise ClusterError(
            f"programs of these packages are missing: {' '.join(absent)}",
            hint=f"Install them: apt-get install --no-install-recommends {' '.join(absent)}",
        )

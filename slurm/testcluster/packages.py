"""Which packages of the distribution a test cluster needs, and which of them are missing here."""

from __future__ import annotations

import os
import shutil
import subprocess

from testcluster.errors import ClusterError

_SLURM = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sinfo": "slurm-client", "munged": "munge"}
#: The engine calls iptables for the name service of a network even where it is told to make no rules.
_DOCKER = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "iptables": "iptables",
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


def _package_of(name: str, package: str) -> str:
    """Return the package that brings a program: newer releases keep the docker command apart."""
    if name != "docker" or not program("apt-cache"):
        return package
    command = [program("apt-cache"), "show", "--no-all-versions", "docker-cli"]
    known = subprocess.run(command, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    return "docker-cli" if known.returncode == 0 else package


def needed(driver: str) -> list[str]:
    """Return the packages that the driver needs."""
    return list(dict.fromkeys(_package_of(*pair) for pair in NEEDED[driver].items()))


def missing(driver: str) -> list[str]:
    """Return the packages whose programs are not found here."""
    return list(dict.fromkeys(_package_of(*pair) for pair in NEEDED[driver].items() if not program(pair[0])))


def require(driver: str) -> None:
    """Raise an error that says what to install where something is missing."""
    absent = missing(driver)
    if absent:
        raise ClusterError(
            f"programs of these packages are missing: {' '.join(absent)}",
            hint=f"Install them: apt-get install --no-install-recommends {' '.join(absent)}",
        )

"""Packages of the distribution: which are missing, and how they get here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from testcluster import packages

from quickstart_steps.errors import QuickstartError


def missing(*, docker: bool) -> list[str]:
    """Return the distribution's packages that are needed and not here.

    Parameters
    ----------
    docker
        Include what test clusters in Docker need.
    """
    absent = packages.missing("embedded")
    if importlib.util.find_spec("ensurepip") is None:
        # Debian keeps the part of Python that makes environments apart.
        absent.append(f"python{sys.version_info.major}.{sys.version_info.minor}-venv")
    if docker:
        absent += [name for name in packages.missing("docker") if name not in absent]
    return absent


def install(names: Sequence[str]) -> None:
    """Install packages with apt-get, as root or through sudo.

    Raises
    ------
    QuickstartError
        Where that is not possible; it says what to ask the administrator for.
    """
    command = _apt(names)
    _run([*command, "update", "-qq"], names)
    _run([*command, "install", "-y", "-qq", "--no-install-recommends", *names], names)


def _apt(names: Sequence[str]) -> list[str]:
    wanted = " ".join(names)
    apt = shutil.which("apt-get")
    if apt is None:
        raise QuickstartError(
            f"programs of these Debian packages are missing, and there is no apt-get: {wanted}",
            where="packages",
            hint="Install slurmctld, slurmd, Slurm's commands and munge the way your distribution does.",
        )
    environment = ["env", "DEBIAN_FRONTEND=noninteractive", apt]
    if os.geteuid() == 0:
        return environment
    sudo = shutil.which("sudo")
    if sudo is not None:
        quiet = subprocess.run(
            [sudo, "-n", "true"], capture_output=True, stdin=subprocess.DEVNULL, timeout=30, check=False
        )
        if quiet.returncode == 0:
            return [sudo, "-n", *environment]
        if sys.stdin.isatty():
            print("sudo may ask for your password:")
            return [sudo, *environment]
    raise QuickstartError(
        f"packages are missing, and only an administrator may install them: {wanted}",
        where="packages",
        hint=f"Ask for: apt-get install --no-install-recommends {wanted}\n"
        "Then run this again; the rest needs no rights.",
    )


def _run(command: list[str], names: Sequence[str]) -> None:
    # To a terminal everything is shown, and sudo may ask for a password; elsewhere only what failed.
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    print(" ".join(command), flush=True)
    done = subprocess.run(
        command,
        stdin=None if terminal else subprocess.DEVNULL,
        stdout=None if terminal else subprocess.PIPE,
        stderr=None if terminal else subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1800,
    )
    if done.returncode != 0:
        words = "\n".join((done.stdout or "its own words are above").splitlines()[-15:])
        raise QuickstartError(
            f"ended with code {done.returncode}",
            where=" ".join(command),
            hint=f"{words}\nDoes this machine reach its package mirror? To do it by hand:\n"
            f"apt-get update && apt-get install --no-install-recommends {' '.join(names)}",
        )

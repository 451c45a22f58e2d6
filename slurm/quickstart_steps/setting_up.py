"""Step 1: what is missing on this machine, said first and installed then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from testcluster.errors import ClusterError

from quickstart_steps import requirements, system_packages
from quickstart_steps.environment import Environment
from quickstart_steps.errors import QuickstartError


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be installed.

    Attributes
    ----------
    system
        Packages of the distribution.
    python
        Requirements for `.venv`.
    """

    system: list[str]
    python: list[str]


def find_needs(environment: Environment, *, docker: bool) -> Needs:
    """Look at what is missing."""
    try:
        return Needs(system_packages.missing(docker=docker), environment.missing())
    except ClusterError as error:
        raise QuickstartError(str(error)) from None


def tell(environment: Environment, needs: Needs, say: Callable[[str], None]) -> None:
    """Say what will be installed, and where."""
    if not needs.system and not needs.python:
        say("Everything that is needed is here.")
        return
    say("Needed and not here:")
    if needs.system:
        say(f"  from the distribution, with apt-get: {' '.join(needs.system)}")
    if needs.python:
        say(f"  into {environment.folder}, with pip:")
        say("    " + " ".join(text for text in needs.python if text != "unicron-hpc"))
        if "unicron-hpc" in needs.python:
            say(f"    unicron-hpc from {environment.repository} (editable)")
        if requirements.TORCH in needs.python:
            say("    The largest is torch: about 0.2 GB to download in its CPU build, 1 GB installed.")


def meet(environment: Environment, needs: Needs) -> None:
    """Install it."""
    if needs.system:
        system_packages.install(needs.system)
        left = system_packages.missing(docker=False)
        if set(left) & set(needs.system):
            raise QuickstartError(
                f"apt-get ended well, but these are still missing: {' '.join(left)}", where="packages"
            )
    environment.complete(needs.python)

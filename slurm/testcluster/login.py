"""What a command of `exec` finds on the embedded cluster: its environment and its folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from testcluster.accounts import Account
from testcluster.errors import ClusterError

#: Variables that belong to another job, or to the session of another user.
_FOREIGN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "XDG_", "SUDO_")


def environment(account: Account, repository: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Return our environment, less what another user or job owns, plus the account's and `own`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    system = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    folders = [str(repository / ".venv" / "bin"), *kept.get("PATH", "").split(":"), *system]
    kept["PATH"] = ":".join(dict.fromkeys(folder for folder in folders if folder))
    if os.geteuid() == 0:
        kept.pop("TMPDIR", None)
        names = {"USER": account.name, "LOGNAME": account.name}
        kept |= {"HOME": str(account.home), "SHELL": "/bin/bash", **names}
    return kept | dict(own)


def replace_process(command: Sequence[str], variables: Mapping[str, str], places: Sequence[str]) -> NoReturn:
    """Become `command`, in the first of `places` that may be entered."""
    for place in places:
        with contextlib.suppress(OSError):
            os.chdir(place)
            break
    try:
        os.execvpe(command[0], list(command), dict(variables))
    except OSError as error:
        raise ClusterError(str(error.strerror), where=command[0]) from None

"""The one place where Slurm's commands are run: argument lists, a timeout, and all they said."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unicron_hpc.errors import SlurmError

#: Seconds after which a command is given up. Slurm's own MessageTimeout is 10 s.
DEFAULT_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command did.

    Attributes
    ----------
    argv
        Its arguments.
    stdout, stderr
        What it wrote; bytes that are no UTF-8 are replaced.
    code
        Exit code; negative for the signal that ended it.
    """

    argv: tuple[str, ...]
    stdout: str
    stderr: str
    code: int

    @property
    def words(self) -> str:
        """What it said for people: stderr, else stdout, without blank lines."""
        said = self.stderr.strip() or self.stdout.strip()
        return "\n".join(line for line in said.splitlines() if line.strip())

    @property
    def command(self) -> str:
        """The command as one would type it."""
        return shlex.join(self.argv)

    def error(self) -> SlurmError:
        """The failure as an error in Slurm's own words."""
        return SlurmError(
            self.words or f"ended with exit code {self.code} and said nothing", where=self.command
        )


def run(
    argv: Sequence[str],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Completed:
    """Run a command and wait for it.

    Parameters
    ----------
    argv
        The command and its arguments; no shell is involved.
    timeout
        Seconds.
    env
        Its whole environment; ours when None.
    cwd
        Folder to run it in; ours when None.

    Raises
    ------
    SlurmError
        When there is no such command, or it did not end in time. A non-zero exit code is no error here.
    """
    where = shlex.join(argv)
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=None if env is None else dict(env),
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise not_found(argv[0]) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"no answer within {timeout:g} s", where=where) from error
    except OSError as error:
        raise SlurmError(f"cannot be run: {error.strerror or error}", where=where) from error
    return Completed(
        tuple(argv),
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
        done.returncode,
    )


def not_found(command: str) -> SlurmError:
    """The error for a command that is not there."""
    return SlurmError(
        f"command not found: {command}",
        hint="Slurm's commands must be in PATH; `unicron-sbatch --cluster local` runs without Slurm",
    )

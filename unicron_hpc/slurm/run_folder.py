"""The run folder before and after the job has its number.

The number is known only once Slurm has taken the job, and by then the job may be running. So the submitter
stages the folder under a hidden name, and whoever comes first - the submitter with sbatch's answer, or the
job's batch process - gives it its final name.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from pathlib import Path

from unicron_hpc.errors import ConfigError, UnicronError

#: File with the site's rules for what an error means.
RULES = "rules.yaml"
_PREFIX = ".staged-"
#: Seconds that a rename made on another node may take to be seen here through the shared file system.
_VISIBLE_WITHIN = 30.0


def stage(run_dir: Path, name: str, files: dict[str, str]) -> Path:
    """Make a folder for a job that has no number yet.

    Parameters
    ----------
    run_dir
        Made where it is missing.
    name
        Name of the job.
    files
        Text of each file by its name; files are 0600, the folder 0700.

    Raises
    ------
    ConfigError
        When it cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        staged = run_dir / f"{_PREFIX}{name}.{secrets.token_hex(6)}"
        staged.mkdir(mode=0o700)
        (staged / "logs").mkdir(mode=0o700)
        for file_name, text in files.items():
            write_private(staged / file_name, text)
    except OSError as error:
        raise ConfigError(
            f"cannot write to run_dir: {error.strerror or error}",
            where=str(error.filename or run_dir),
            hint="set `run_dir:` to a folder on the shared file system that you may write to",
        ) from error
    return staged


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def final_name(staged: Path, job_id: str) -> Path:
    """The run folder that `staged` becomes.

    Raises
    ------
    UnicronError
        When it is no staged folder.
    """
    name, dot, _ = staged.name.removeprefix(_PREFIX).rpartition(".")
    if not staged.name.startswith(_PREFIX) or not dot:
        raise UnicronError("is not a staged run folder", where=str(staged))
    return staged.parent / f"{name}-{job_id}"


def claim_run_folder(staged: Path, job_id: str, *, patience: float = _VISIBLE_WITHIN) -> Path:
    """Give the staged folder its final name, or find that it has it.

    Any number of processes may call this at the same time, and again later (a requeued job does). A folder
    of that name which an earlier job left (numbers start again on a new cluster) is put aside, never mixed.

    Parameters
    ----------
    staged
        What `stage` returned.
    job_id
        The job's number.
    patience
        Seconds to wait for a rename made elsewhere to become visible.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    UnicronError
        When neither folder is there.
    """
    final = final_name(staged, job_id)
    deadline = time.monotonic() + patience
    while True:
        try:
            staged.rename(final)
            return final
        except FileNotFoundError:
            if final.is_dir():
                return final
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise UnicronError(f"cannot be renamed: {error.strerror}", where=str(staged)) from error
            _put_aside(staged, final)
        if time.monotonic() > deadline:
            raise UnicronError("the run folder is gone", where=str(staged), hint=f"looked for {final}, too")
        time.sleep(0.05)


def _put_aside(staged: Path, final: Path) -> None:
    """Move an earlier job's folder out of the way; only one process does, the others try again."""
    lock = staged / ".claiming"
    try:
        # Inside the staged folder: once that has its final name nobody can take the lock any more, so the
        # folder that is moved is never the new one.
        os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except (FileExistsError, FileNotFoundError):
        return
    final.rename(final.with_name(f"{final.name}.old-{secrets.token_hex(3)}"))

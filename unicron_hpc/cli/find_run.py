"""From what a person types for a job - a number or a folder - to its run folder."""

from __future__ import annotations

import glob
import re
import shutil
from pathlib import Path

from unicron_hpc.errors import ConfigError, UnicronError
from unicron_hpc.slurm import commands

#: The folder may have blanks in its name; what follows is the next field, or nothing.
_STDOUT = re.compile(r"\sStdOut=(.+?)\.out(?:\s+\w+=.*)?\s*$", re.MULTILINE)
#: The job with which a run folder's name ends.
_JOB = re.compile(r"-(?P<job>local(?:-\d+)+|\d+(?:[_+]\d+)?)$", re.ASCII)
#: A job, a task of an array (`100_3`), a part of a heterogeneous job (`12+1`).
_NUMBER = re.compile(r"[0-9]+(?:[_+][0-9]+)?", re.ASCII)


def find_run_folder(job: str, run_dir: Path | None) -> Path:
    """The run folder of a job.

    Parameters
    ----------
    job
        A run folder, or a job id.
    run_dir
        Where run folders lie, for jobs that Slurm has forgotten; None to look in `.` and `runs/`.

    Raises
    ------
    ConfigError
        When there is none.
    """
    if "/" in job or (job and Path(job, "train.yaml").exists()):
        folder = Path(job)
        if (folder / "train.yaml").exists():
            return folder.resolve()
        raise ConfigError("is no run folder: it has no train.yaml", where=job)
    for root in [run_dir] if run_dir else [Path(), Path("runs")]:
        named = (path for path in root.glob(f"*-{glob.escape(job)}") if not _is_local(path.name, job))
        found = [path for path in named if (path / "train.yaml").exists()]
        if len(found) == 1:
            return found[0].resolve()
        if found:
            names = ", ".join(str(path) for path in found)
            raise ConfigError(
                f"several runs have the number {job}: {names}", hint="Give one of these folders."
            )
    if shutil.which("scontrol") and _NUMBER.fullmatch(job):
        try:
            shown = commands.run(["scontrol", "show", "job", "--oneliner", job]).stdout
        except UnicronError:
            shown = ""
        match = _STDOUT.search(shown)
        if match and (folder := Path(match[1])).joinpath("train.yaml").exists():
            return folder
    raise ConfigError(
        f"no run folder of job {job} was found",
        hint="Give the run folder itself, or --run-dir with the folder that `run_dir:` names in train.yaml.",
    )


def job_of(run_folder: Path) -> str:
    """The job id at the end of a run folder's name (`4711`, `local-20261130-190000-4711`); empty for none."""
    found = _JOB.search(run_folder.name)
    return found["job"] if found else ""


def _is_local(name: str, job: str) -> bool:
    """Whether a number is only the end of that of a run without Slurm."""
    return job.isdecimal() and job_of(Path(name)) != job

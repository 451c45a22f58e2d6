"""From what a person types for a job - a number or a folder - to its run folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from unicron_hpc.errors import ConfigError, UnicronError
from unicron_hpc.slurm import commands

_STDOUT = re.compile(r"\bStdOut=(\S+)\.out(?:\s|$)")


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
    if "/" in job or Path(job, "train.yaml").exists():
        folder = Path(job)
        if (folder / "train.yaml").exists():
            return folder.resolve()
        raise ConfigError("is no run folder: it has no train.yaml", where=job)
    for root in [run_dir] if run_dir else [Path(), Path("runs")]:
        found = [path for path in root.glob(f"*-{job}") if (path / "train.yaml").exists()]
        if len(found) == 1:
            return found[0].resolve()
        if found:
            names = ", ".join(str(path) for path in found)
            raise ConfigError(
                f"several runs have the number {job}: {names}", hint="Give one of these folders."
            )
    if shutil.which("scontrol") and re.fullmatch(r"[0-9_]+", job):
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

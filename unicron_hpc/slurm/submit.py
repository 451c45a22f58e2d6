"""Handing a job to Slurm: stage the run folder, run sbatch, give the folder its name."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unicron_hpc.config import Settings, dump_resolved
from unicron_hpc.errors import ConfigError, SlurmError
from unicron_hpc.slurm import commands, parsing, queries, run_folder, script
from unicron_hpc.slurm.avoiding import exclusion
from unicron_hpc.slurm.commands import Completed
from unicron_hpc.slurm.environment import scrubbed

#: The job was certainly not taken when sbatch says this, so it may be tried again.
_UNREACHABLE = "Unable to contact slurm controller"
#: sbatch is installed, but no cluster is: there is nobody who could refuse.
_NO_CLUSTER = "Could not establish a configuration source"
_WAITS = (1.0, 2.0, 4.0, 8.0)


class SubmissionRefused(SlurmError):
    """sbatch did not take the job; its own words are in the message."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that Slurm took.

    Attributes
    ----------
    job_id
        Its number.
    run_folder
        Its folder.
    output
        The file with the batch script's output.
    warnings
        What the user should know: variables that were ignored, what sbatch said beside the number.
    """

    job_id: str
    run_folder: Path
    output: Path
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What is submitted.

    Attributes
    ----------
    settings
        The checked settings.
    source, source_text
        The train.yaml's name and text as given.
    passed_on
        Long options that go to sbatch as they are.
    rules
        Text of the site's rules, checked; empty without any.
    """

    settings: Settings
    source: str
    source_text: str
    passed_on: tuple[str, ...] = ()
    rules: str = ""


def stage(request: Request) -> Path:
    """Make the run folder under its hidden name, with everything that the job needs."""
    settings = request.settings
    files = {"train.yaml": dump_resolved(settings), "train.source.yaml": request.source_text}
    if request.rules:
        # A copy: all agents, also those that start later, judge by the rules that were checked.
        files[run_folder.RULES] = request.rules
    staged = run_folder.stage(settings.run_dir, settings.name, files)
    text = script.render(settings, staged, source=request.source)
    run_folder.write_private(staged / "submission.sh", text)
    return staged


def submit(
    request: Request,
    env: Mapping[str, str],
    *,
    run: Callable[..., Completed] = commands.run,
    wait: Callable[[float], None] = time.sleep,
) -> Submitted:
    """Submit a job.

    Parameters
    ----------
    request
        What to submit.
    env
        The user's environment.
    run, wait
        How commands are run and time is waited.

    Raises
    ------
    ConfigError
        When the job cannot fit into its partition, or its folder cannot be written; nothing was submitted.
    SubmissionRefused
        When sbatch says no.
    SlurmError
        When slurmctld cannot be reached.
    """
    clean, warnings = scrubbed(env)
    if shutil.which("sbatch", path=clean.get("PATH")) is None:
        raise commands.not_found("sbatch")
    sizes, default = queries.partition_sizes(clean), queries.default_partition(clean)
    check_size(request.settings, sizes, default)
    exclude, notes = exclusion(request.settings, sizes, default, clean)
    staged = stage(request)
    path = staged / "submission.sh"
    argv = ["sbatch", "--parsable", *request.passed_on, *exclude, str(path)]
    done = run(argv, env=clean)
    for pause in _WAITS:
        if done.code == 0 or _UNREACHABLE not in done.stderr:
            break
        wait(pause)
        done = run(argv, env=clean)
    if done.code != 0:
        raise _refusal(done, path)
    job_id = parsing.parse_submission(done.stdout)
    said = tuple(line for line in done.stderr.splitlines() if line.strip())
    folder = run_folder.claim_run_folder(staged, job_id)
    return Submitted(job_id, folder, script.output_file(request.settings, job_id), (*warnings, *notes, *said))


def check_size(settings: Settings, sizes: Mapping[str, int], default: str) -> None:
    """Refuse a job that has more nodes than its partition.

    Parameters
    ----------
    sizes
        Nodes of each partition; what is not in it is left to Slurm.
    default
        The partition of jobs that name none.

    Raises
    ------
    ConfigError
        With what would fit.
    """
    slurm = settings.slurm
    names: Sequence[str] = (slurm.partition or default).split(",")
    if not all(name in sizes for name in names):
        return
    largest = max(names, key=lambda name: sizes[name])
    room = sizes[largest]
    if slurm.total_nodes <= room:
        return
    fitting = room - slurm.nodes
    raise ConfigError(
        f"slurm.nodes {slurm.nodes} and slurm.spares {slurm.spares} make {slurm.total_nodes} nodes, "
        f"partition {largest} has {room}",
        hint=f"write spares: {fitting}" if fitting >= 0 else f"write at most {room} nodes, spares included",
    )


def _refusal(done: Completed, path: Path) -> SlurmError:
    words = done.words or f"sbatch ended with exit code {done.code} and said nothing"
    if _NO_CLUSTER in words:
        return SlurmError(
            words, hint="this machine belongs to no Slurm cluster; --cluster local runs without"
        )
    if _UNREACHABLE in words:
        return SlurmError(words, hint=f"nothing was submitted; the script is {path}")
    return SubmissionRefused(words, hint=f"nothing was submitted; the script is {path}")

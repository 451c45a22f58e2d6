"""The batch script that unicron-sbatch submits."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from unicron_hpc import __version__
from unicron_hpc.config.settings import Settings
from unicron_hpc.config.slurm_settings import SbatchOptions, SlurmSettings
from unicron_hpc.errors import ConfigError
from unicron_hpc.slurm import patterns

#: Package of templates and examples (the folder `templates/` of the repository).
TEMPLATES = "unicron_hpc.templates"
#: What the script runs on the batch node, with the run folder as its argument.
BATCH_MODULE = "unicron_hpc.supervisor.batch"
_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]{}()&|!*^~-]+", re.ASCII)


def sbatch_options(settings: Settings) -> tuple[str, ...]:
    """Every sbatch option of the job, each as `--name=value`, unquoted."""
    slurm = settings.slurm
    options = [
        f"--job-name={settings.name}",
        f"--nodes={slurm.total_nodes}",
        "--ntasks-per-node=1",
        "--no-kill",
        f"--output={output_pattern(settings)}",
        "--open-mode=append",
        "--export=ALL",
    ]
    options.extend(_user_options(slurm))
    return tuple(options)


def output_pattern(settings: Settings) -> str:
    """Where the batch script's output goes, as Slurm's filename pattern.

    Raises
    ------
    ConfigError
        When the folder's name cannot be in a pattern.
    """
    return f"{patterns.literal(str(settings.run_dir))}/%x-%j.out"


def output_file(settings: Settings, job_id: str) -> Path:
    """The file into which Slurm writes the batch script's output."""
    return Path(patterns.expand_pattern(output_pattern(settings), {"x": settings.name, "j": job_id}))


def render(settings: Settings, run_folder: Path, *, source: str = "", python: str = "") -> str:
    """The text of the batch script.

    Parameters
    ----------
    settings
        The checked settings.
    run_folder
        Where the job finds its train.yaml; the staged folder.
    source
        The train.yaml as the user named it, for the script's comment.
    python
        Interpreter when `slurm.python` says none; the running one by default.

    Raises
    ------
    ConfigError
        When a value cannot be written on an #SBATCH line.
    """
    # Imported late: rendering is not needed by those who only read settings.
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    template = environment.from_string(resources.files(TEMPLATES).joinpath("sbatch.j2").read_text("utf-8"))
    return template.render(
        options=[quoted(option) for option in sbatch_options(settings)],
        setup=settings.slurm.setup,
        python=shlex.quote(settings.slurm.python or python or sys.executable),
        module=BATCH_MODULE,
        run_folder=shlex.quote(str(run_folder)),
        version=__version__,
        source=re.sub(r"[^\x20-\x7e]", "?", source),
    )


def quoted(option: str) -> str:
    """`option` for an #SBATCH line: sbatch takes quotes away, and what follows ` #` for a comment.

    Raises
    ------
    ConfigError
        For text that the line cannot carry.
    """
    if re.search(r"[\x00-\x1f\x7f]", option):
        raise ConfigError(f"{option!r} has a line break or another control character")
    name, equals, value = option.partition("=")
    if not equals or _BARE.fullmatch(value):
        return option
    for quote in ('"', "'"):
        if quote not in value and "\\" not in value:
            return f"{name}={quote}{value}{quote}"
    raise ConfigError(
        f"{option!r} cannot be written on an #SBATCH line",
        hint="leave out backslashes, and use one kind of quotes only",
    )


def _user_options(slurm: SlurmSettings) -> Iterator[str]:
    for key in SbatchOptions.model_fields:
        value: Any = getattr(slurm, key)
        name = key.replace("_", "-")
        if value is None or (value is False and key not in {"requeue", "kill_on_invalid_dep"}):
            continue
        if key == "requeue":
            yield "--requeue" if value else "--no-requeue"
        elif key == "kill_on_invalid_dep":
            yield f"--{name}={'yes' if value else 'no'}"
        elif value is True or (key == "exclusive" and value == "true"):
            yield f"--{name}"
        else:
            yield f"--{name}={value}"

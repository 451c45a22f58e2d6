"""The environment in which sbatch runs: without the traces of another job, without hidden options."""

from __future__ import annotations

from collections.abc import Mapping

#: How Slurm's commands find their cluster; everything else of Slurm's belongs to the job we may be in.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"})
_SCRUBBED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMIX_", "PMI2_")
#: Set by sbatch's callers for its messages only.
_SILENT = frozenset({"SBATCH_DEBUG", "SBATCH_NO_KILL"})


def scrubbed(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """An environment to submit from, and warnings about what was taken out.

    SLURM_* and PMI* come from a job that the submitting shell is itself in. SBATCH_* would beat the script's
    own #SBATCH lines, so that train.yaml would not say what is submitted.
    """
    clean = {name: text for name, text in env.items() if name in _KEPT or not name.startswith(_SCRUBBED)}
    warnings = [
        f"{name}={text} from the environment is not used; write {_setting(name)}"
        for name, text in sorted(env.items())
        if name.startswith("SBATCH_") and name not in _SILENT
    ]
    return clean, warnings


def _setting(name: str) -> str:
    """The setting that says what the variable `SBATCH_<OPTION>` would."""
    return f"`{name.removeprefix('SBATCH_').lower()}:` under `slurm:` in train.yaml"

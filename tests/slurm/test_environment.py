"""The environment from which a job is submitted."""

from __future__ import annotations

from tests.slurm.field_cases import case
from unicron_hpc.slurm.environment import scrubbed


def test_a_submission_from_inside_a_job_leaves_nothing_of_that_job() -> None:
    inside = dict(case("env-15")[0])
    inside |= {"PMI_RANK": "0", "PMIX_NAMESPACE": "x", "SLURMD_NODENAME": "n1", "SRUN_CPUS_PER_TASK": "2"}
    clean, warnings = scrubbed({**inside, "HOME": "/home/u", "PATH": "/bin"})
    assert clean == {"HOME": "/home/u", "PATH": "/bin"}
    assert warnings == []


def test_what_leads_slurms_commands_to_their_cluster_is_kept() -> None:
    env = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "t"}
    assert scrubbed(env)[0] == env


def test_a_variable_that_would_beat_the_script_is_taken_out_and_named() -> None:
    env = {"SBATCH_PARTITION": case("env-17")[0]["SBATCH_PARTITION"]}
    clean, warnings = scrubbed(env)
    assert clean == {}
    assert warnings == [
        "SBATCH_PARTITION=debug from the environment is not used; "
        "write `partition:` under `slurm:` in train.yaml"
    ]

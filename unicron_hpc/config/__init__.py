"""train.yaml into checked, frozen settings; every error has its place in the file and a suggestion."""

from __future__ import annotations

from unicron_hpc.config.dumping import dump_resolved
from unicron_hpc.config.loading import load, load_resolved
from unicron_hpc.config.overrides import Override
from unicron_hpc.config.problems import Problem, SettingsError
from unicron_hpc.config.sections import (
    CheckpointSettings,
    DataSettings,
    ModelSettings,
    RecoverySettings,
    TrainSettings,
)
from unicron_hpc.config.settings import Settings, TaskSettings
from unicron_hpc.config.slurm_settings import SlurmSettings

__all__ = [
    "CheckpointSettings",
    "DataSettings",
    "ModelSettings",
    "Override",
    "Problem",
    "RecoverySettings",
    "Settings",
    "SettingsError",
    "SlurmSettings",
    "TaskSettings",
    "TrainSettings",
    "dump_resolved",
    "load",
    "load_resolved",
]

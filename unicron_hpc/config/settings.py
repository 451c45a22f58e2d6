"""The whole of train.yaml as frozen settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from unicron_hpc.config.fields import Count, Frozen, Name, OutputPath, Positive
from unicron_hpc.config.sections import (
    CheckpointSettings,
    DataSettings,
    ModelSettings,
    RecoverySettings,
    TrainSettings,
)
from unicron_hpc.config.slurm_settings import SlurmSettings


class TaskSettings(Frozen):
    """One training: its model, data and weight. What a task leaves out, the file's top level gives."""

    name: Name
    """Name of the task."""
    weight: Positive = 1.0
    """How much its throughput counts against other tasks'."""
    min_nodes: Count = 1
    """Fewest nodes on which it runs."""
    model: ModelSettings
    """The model."""
    train: TrainSettings
    """How it is trained."""
    data: DataSettings
    """What it is trained on."""
    checkpoint: CheckpointSettings
    """Where checkpoints are written."""


class Settings(Frozen):
    """Everything that train.yaml says, with defaults filled in and paths absolute."""

    name: Name
    """Name of the job; the file's own name when left out."""
    run_dir: OutputPath
    """Folder for the run folders and checkpoints, on the shared file system."""
    workload: Literal["gpt"] = "gpt"
    """What runs: `gpt` is the built-in Megatron-core model."""
    slurm: SlurmSettings
    """What is asked of Slurm."""
    recovery: RecoverySettings = RecoverySettings()
    """Faults and attempts."""
    tasks: tuple[TaskSettings, ...]
    """The trainings; one, named as the job, where the file has no `tasks:`."""

    def task_list(self) -> tuple[TaskSettings, ...]:
        """The trainings of this job, at least one."""
        return self.tasks

    @property
    def model(self) -> ModelSettings:
        """The first task's model; for jobs that have one task."""
        return self.tasks[0].model

    @property
    def train(self) -> TrainSettings:
        """The first task's training settings; for jobs that have one task."""
        return self.tasks[0].train

    @property
    def data(self) -> DataSettings:
        """The first task's data; for jobs that have one task."""
        return self.tasks[0].data

    @property
    def checkpoint(self) -> CheckpointSettings:
        """The first task's checkpoint settings; for jobs that have one task."""
        return self.tasks[0].checkpoint

    def run_folder(self, job_id: str) -> Path:
        """The run folder of job `job_id`."""
        return self.run_dir / f"{self.name}-{job_id}"

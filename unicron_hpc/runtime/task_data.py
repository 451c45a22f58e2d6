"""The data of one task of a job: made ready once, then opened by every rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from unicron_hpc.config import TaskSettings, load_resolved
from unicron_hpc.errors import UnicronError
from unicron_hpc.runtime.data import DataIndex, MicroBatches, open_micro_batches
from unicron_hpc.runtime.environment import RUN_FOLDER, TASK


def _index_path(run_folder: Path, task: str) -> Path:
    return run_folder / f"data-{task}.json"


def prepare_task_data(task: TaskSettings, run_folder: Path) -> None:
    """Build the task's dataset, shared by all runs under the same `run_dir`, and note where it lies."""
    from unicron_hpc.runtime.prepare_data import prepare

    index = prepare(
        text=task.data.text,
        path=str(task.data.path) if task.data.path else None,
        seq_length=task.model.seq_length,
        samples_needed=task.train.train_iters * task.train.global_batch_size,
        seed=task.train.seed,
        vocab_size=task.model.vocab_size,
        out_dir=run_folder.parent / "data",
    )
    path = _index_path(run_folder, task.name)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(index))
    temporary.chmod(0o600)
    temporary.replace(path)


def open_task_data(task: TaskSettings, run_folder: Path) -> MicroBatches:
    """Open what `prepare_task_data` made ready.

    Raises
    ------
    UnicronError
        When it did not.
    """
    path = _index_path(run_folder, task.name)
    try:
        index = msgspec.json.decode(path.read_bytes(), type=DataIndex)
    except (OSError, msgspec.DecodeError) as error:
        raise UnicronError(f"the data of task {task.name} is not ready: {error}", where=str(path)) from error
    return open_micro_batches(
        index,
        micro_batch_size=task.train.fixed_micro_batch_size,
        global_batch_size=task.train.global_batch_size,
    )


def prepare_as_child() -> int:
    """What a zygote's child does for `PREPARE_DATA`; returns its exit code, errors are in its log."""
    os.umask(0o077)
    run_folder = Path(os.environ[RUN_FOLDER])
    try:
        settings = load_resolved(run_folder / "train.yaml")
        task = next(task for task in settings.task_list() if task.name == os.environ[TASK])
        prepare_task_data(task, run_folder)
    except UnicronError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0

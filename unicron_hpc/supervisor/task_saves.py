"""What a task has saved, and the order to save once more."""

from __future__ import annotations

from unicron_hpc.supervisor.checkpoints import Checkpoints
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.rank_messages import SaveCheckpoint
from unicron_hpc.supervisor.task_state import TaskState


class TaskSaves:
    """One task's checkpoints, as the end of the run sees them.

    Parameters
    ----------
    state, hub, checkpoints
        The task's.
    """

    def __init__(self, state: TaskState, hub: Hub, checkpoints: Checkpoints) -> None:
        self.name = state.name
        self._state = state
        self._hub = hub
        self._checkpoints = checkpoints

    @property
    def epoch(self) -> int | None:
        """The epoch that runs; None where the task is finished, has not begun, or writes no checkpoints."""
        state = self._state
        if state.finished or state.running_epoch == 0 or state.task.checkpoint.save_interval == 0:
            return None
        return state.running_epoch

    @property
    def committed(self) -> int:
        """The last iteration that has been told."""
        return self._hub.commits.last(self.name)

    @property
    def newest(self) -> int:
        """Iteration of the newest checkpoint that this run has sealed; 0 for none."""
        return self._checkpoints.newest

    @property
    def failures(self) -> int:
        """How many checkpoints could not be written."""
        return self._checkpoints.failures

    def order(self) -> None:
        """Have all ranks save after the same one of the next iterations."""
        layout = self._state.layout
        process = self._state.seats.get(layout.seats[0]) if layout is not None else None
        if process is not None:
            # One is enough, and only one: another that heard of it later would have all save again.
            self._hub.tell(process.address, SaveCheckpoint())

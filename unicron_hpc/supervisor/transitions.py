"""Runs the transitions of one task: one at a time, a new fault abandons the one under way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.progress import Progress
from unicron_hpc.detect.severity import Finding, Method, Severity
from unicron_hpc.errors import UnicronError
from unicron_hpc.supervisor.checkpoints import Checkpoints
from unicron_hpc.supervisor.hub import Hub
from unicron_hpc.supervisor.incident import Evidence
from unicron_hpc.supervisor.incidents import Incidents
from unicron_hpc.supervisor.rank_messages import Cut
from unicron_hpc.supervisor.seats import RankProcessState
from unicron_hpc.supervisor.task_state import TaskState
from unicron_hpc.supervisor.transition import Transition

log = logging.getLogger(__name__)


class Transitions:
    """Begins, abandons and watches over transitions.

    Parameters
    ----------
    state, hub, recovery, checkpoints, incidents
        The task's.
    progress
        Expects commits only while an epoch runs.
    on_fault, on_silent
        Take evidence that a transition itself came upon, and processes that do not answer it.
    on_running
        Called when the ranks of a new epoch have begun to compute.
    """

    def __init__(
        self,
        *,
        state: TaskState,
        hub: Hub,
        recovery: RecoverySettings,
        checkpoints: Checkpoints,
        incidents: Incidents,
        progress: Progress,
        on_fault: Callable[[Evidence], None],
        on_silent: Callable[[RankProcessState], None],
        on_running: Callable[[], None],
    ) -> None:
        self._state = state
        self._hub = hub
        self._recovery = recovery
        self._checkpoints = checkpoints
        self._incidents = incidents
        self._progress = progress
        self._on_fault = on_fault
        self._on_silent = on_silent
        self._on_running = on_running
        self._current: Transition | None = None
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self._suspended = False
        self._timeouts = 0  # in a row
        self._usual = 0.0  # seconds of an iteration, as long as the epoch has shown nothing else

    @property
    def under_way(self) -> bool:
        return self._running is not None and not self._running.done()

    @property
    def gathering(self) -> bool:
        """Whether one is under way that still takes news of more faults into account."""
        return self.under_way and self._current is not None and self._current.gathering

    def can_spare(self, process: RankProcessState) -> bool:
        """Whether a process can go without the last copy of some state; also where none is under way."""
        return not self.under_way or self._current is None or self._current.can_spare(process)

    def begin(self) -> None:
        """Begin the next epoch, unless the incident has had all its attempts."""
        if self._closed:
            return
        state = self._state
        hopeless = self._incidents.try_again()
        if hopeless:
            self._hub.fail(*hopeless)
            return
        self.cancel()
        self._suspended = False
        state.store.close("a new epoch begins")
        state.epoch = self._hub.next_epoch()
        recovery = self._recovery
        starting = recovery.startup_timeout if state.running_epoch == 0 else 0.0  # zygotes may still import
        self._current = Transition(
            state,
            self._hub,
            self._checkpoints,
            self._hold_timeout(),
            self._incidents,
            self._on_silent,
            limit=recovery.transition_timeout + starting,
            reading_limit=recovery.startup_timeout,
            self_test=recovery.node_checks == "always"
            or (recovery.node_checks == "after_fault" and state.incident is not None),
        )
        self._running = asyncio.create_task(self._run(self._current), name=f"epoch {state.epoch}")

    def cancel(self) -> None:
        """Abandon the transition under way; no commit is expected for now."""
        if self._running:
            self._running.cancel()
        self._progress.pause()

    def close(self) -> None:
        """Begin none any more."""
        self._closed = True
        if self._running:
            self._running.cancel()

    def suspend(self) -> None:
        """Have all ranks stop where they are, in an epoch that nobody leads."""
        state = self._state
        self.cancel()
        state.store.close("this side may not go on by itself")
        state.epoch = self._hub.next_epoch()
        self._suspended = True
        for process in state.seats:
            self._hub.tell(process.address, Cut(state.epoch))

    def resume(self) -> None:
        """Go on after `suspend`, in a new epoch."""
        if self._suspended and not self.under_way:
            self.begin()

    def _hold_timeout(self) -> float:
        """A lost node must be noticed before its ranks are given up; a long micro-batch may finish."""
        self._usual = self._progress.mean or self._usual
        return max(2.5 * self._recovery.node_timeout, self._recovery.iteration_failure_factor * self._usual)

    async def _run(self, transition: Transition) -> None:
        try:
            await transition.run()
        except TimeoutError:
            self._timeouts += 1
            names = ", ".join(str(self._state.rank_of(p.address.seat)) for p in transition.late())
            hopeless = transition.hopeless(self._timeouts)
            for process in hopeless:
                transition.give_up_on(process)
            self._running = None
            finding = Finding("transition timed out", Severity.SEV2 if hopeless else Severity.SEV3)
            self._on_fault(Evidence(finding, Method.STATISTICS, "", None, f"not ready: ranks {names}"))
        except UnicronError as error:
            self._hub.fail(error.message, error.hint)
        except Exception as error:
            log.exception("transition to epoch %d failed", transition.epoch)
            self._hub.fail(f"internal error in the transition to epoch {transition.epoch}: {error!r}")
        else:
            self._timeouts = 0
            self._incidents.epoch_runs()
            self._progress.begin(time.monotonic())
            asyncio.get_running_loop().call_soon(self._on_running)

"""The training engine of one rank: takes places in epochs, computes, keeps state through faults."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed hides them from mypy

from unicron_hpc.config.settings import TaskSettings
from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.planner.units import UnitKey
from unicron_hpc.runtime import commit, cpu_patches, groups
from unicron_hpc.runtime.attempt import Attempt, Worker
from unicron_hpc.runtime.chunk import Chunk
from unicron_hpc.runtime.faults import GroupsCut, PeerLost, StateMismatch, WorkLeftBehind
from unicron_hpc.runtime.inject import Injections
from unicron_hpc.runtime.inventory import Inventory, UnitLoader
from unicron_hpc.runtime.iteration import MicroBatchSource
from unicron_hpc.runtime.optimizer import Adam, LearningRate, clip_factor
from unicron_hpc.runtime.orders import Committed, Holdings, PendingCommit, Phase, Rebuild, RebuildReport
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.runtime.place import Clock, Place, Places
from unicron_hpc.runtime.progress import Kept
from unicron_hpc.runtime.sockets import SocketGuard
from unicron_hpc.runtime.unit_state import UnitState, UnitStates

#: Committed iterations that a rank remembers for those that must catch up.
RECENT = 16


class Engine:
    """State and work of one rank through all epochs.

    Everything but `cut` and `ask_to_save` belongs to the main thread.

    Parameters
    ----------
    task
        Model and training settings.
    data
        Micro-batches by (iteration, index).
    device
        `cpu`, or a CUDA device.
    load_units
        Reads units from a checkpoint folder; needed only for orders that name one.
    marks
        Where it says what it is doing.
    building, using
        Longest wait for a peer while groups are built, and in any call on them later. The first is short,
        since a peer that dies while it connects leaves no socket to cut; the second is a last resort
        behind the supervisor's own detection.
    """

    def __init__(
        self,
        task: TaskSettings,
        data: MicroBatchSource,
        *,
        device: str = "cpu",
        load_units: UnitLoader | None = None,
        marks: PhaseMarks | None = None,
        building: timedelta = timedelta(seconds=15),
        using: timedelta = timedelta(minutes=10),
    ) -> None:
        self._task = task
        self._data = data
        self._device = torch.device(device)
        self._building = building
        self._using = using
        if self._device.type == "cpu":
            cpu_patches.apply()
        self._marks = marks or PhaseMarks()
        self._guard = SocketGuard()
        self._epoch = -1
        self._cut_before = -1
        self._inventory = Inventory(self._device, load_units, self._marks)
        self._chunk: Chunk | None = None
        self._place: Place | None = None
        self._worker = Worker()
        self._remains = groups.Remains()
        self._kept: Kept | None = None
        self._adam = Adam(task.train)
        self._rate = LearningRate(task.train)
        self._full_tokens = task.train.global_batch_size * task.model.seq_length
        self._iteration = 0
        self._asked_to_save, self._saves_after = False, 0
        self._phase = Phase.IDLE
        self._recent: deque[Committed] = deque(maxlen=RECENT)
        #: What a drill wants to fail in this rank.
        self.injections = Injections()
        self._places = Places(task, data, self._device, self._marks, self._inventory, self.injections)

    @property
    def iteration(self) -> int:
        """Iterations committed by this rank."""
        return self._iteration

    @property
    def states(self) -> UnitStates:
        """All state in this process's memory, live: it changes with the next iteration."""
        return self._inventory.states

    @property
    def epoch(self) -> int:
        """Epoch of the last order; -1 before the first."""
        return self._epoch

    @property
    def saves_after(self) -> int:
        """The last iteration after which all ranks agreed to save; 0 for none."""
        return self._saves_after

    def ask_to_save(self) -> None:
        """Have all ranks save after one and the same of the next iterations (any thread).

        The commit carries the wish, so that they need not hear of it at the same time.
        """
        self._asked_to_save = True

    def cut(self, before: int | None = None) -> None:
        """Break this rank's groups, so that every call that waits for a peer raises (any thread).

        Parameters
        ----------
        before
            Epochs below this number are over: the one that this rank is in breaks off, and orders for
            others are refused. None ends the current epoch.
        """
        if before is None:
            before = self._epoch + 1
        self._cut_before = max(self._cut_before, before)
        if self._epoch < before:
            self._guard.cut()
            self._worker.hurry()

    def rebuild(self, order: Rebuild, store: Store) -> RebuildReport:
        """Take the place that `order` gives; may follow a fault in any place, any number of times.

        Parameters
        ----------
        store
            Where ranks meet; keys get the epoch's prefix here. Its waits must raise when the epoch ends.

        Raises
        ------
        GroupsCut
            When the epoch was cut, or a peer was lost, before everything was in place.
        StateMismatch
            When state here or from a peer is not what the order says.
        """
        self._marks.take(WorkPhase.RELEASE, epoch=order.epoch)
        self._kept = self._unfinished()
        self._release()
        self._epoch = order.epoch
        with self._faults():
            self._check_cut()
            clock = Clock()
            committed = self._settle_pending(order)
            commit_seconds = clock.lap()
            self._marks.enter(WorkPhase.GROUPS)
            guard, chunk = self._guard, self._chunk
            if order.only_sends:
                report = self._worker.call(
                    lambda attempt: self._only_send(order, store, guard, attempt), self._is_cut
                )
                self._check_cut()
                return msgspec.structs.replace(report, committed=committed, commit_seconds=commit_seconds)
            place, report = self._worker.call(
                lambda attempt: self._take_place(order, store, guard, chunk, attempt), self._is_cut
            )
            self._check_cut()
            self._place, self._chunk, self._kept = place, place.chunk, None
            self._iteration = order.iteration
            # After a roll-back, what came later has not happened.
            for committed_later in [c for c in self._recent if c.iteration > order.iteration]:
                self._recent.remove(committed_later)
            return msgspec.structs.replace(report, committed=committed, commit_seconds=commit_seconds)

    def run_iteration(self) -> Committed:
        """Compute and commit the next iteration.

        Raises
        ------
        GroupsCut
            On a cut or the loss of a peer; `holdings` says how far the iteration got.
        ProgramFault
            When loss or gradient is not finite; on every rank alike.
        """
        with self._faults():
            place = self._place
            if place is None:
                raise StateMismatch("no epoch has been built", hint="Call rebuild first.")
            self._check_cut()
            self._phase = Phase.COMPUTING
            try:
                return self._worker.call(lambda attempt: self._iterate(place, attempt), self._is_cut)
            except Exception as error:
                left_behind = isinstance(error, WorkLeftBehind)
                self._kept = place.progress.kept(self._iteration + 1, copy=left_behind)
                raise

    def holdings(self) -> Holdings:
        """What this process holds, for the planner."""
        kept = self._unfinished()
        return Holdings(
            iteration=self._iteration,
            phase=self._phase,
            pending_iteration=0 if self._phase is Phase.IDLE else self._iteration + 1,
            units=self._inventory.held(),
            recent=tuple(self._recent),
            pending_units=(
                tuple(self._place.chunk.needed)
                if self._phase is Phase.REDUCED and self._place is not None
                else ()
            ),
            unfinished=kept.unfinished if kept is not None else None,
        )

    def snapshot(self) -> dict[UnitKey, UnitState]:
        """A copy, in host memory, of the units that this rank's place needs."""
        return self._inventory.copy(self._place.chunk.needed if self._place is not None else ())

    # -- one iteration ---------------------------------------------------------------------------------

    def _iterate(self, place: Place, attempt: Attempt) -> Committed:
        began = time.perf_counter()
        iteration = self._iteration + 1
        gradients = place.gradients
        self._marks.begin_iteration(iteration)
        loss_sum, tokens = place.passes.run(iteration)
        self._marks.enter(WorkPhase.ALL_REDUCE)
        gradients.sum_over_holders(place.groups)
        self._marks.enter(WorkPhase.OPTIMIZER)
        own = commit.Totals(gradients.squared_norm(), loss_sum, tokens, float(self._asked_to_save))
        with attempt.counts():
            self._phase = Phase.REDUCED
        self._marks.enter(WorkPhase.COMMIT)
        totals = commit.agree(own, self._device, place.groups.members)
        self._marks.enter(WorkPhase.OPTIMIZER)
        loss, norm = commit.mean_loss_and_norm(totals, self._full_tokens, iteration)
        with attempt.counts():
            if totals.saves:
                self._asked_to_save, self._saves_after = False, iteration
            committed = self._apply(place, PendingCommit(iteration, loss, norm, int(totals.tokens)), began)
            self._marks.end_iteration()
            return committed

    def _apply(self, place: Place, pending: PendingCommit, began: float | None) -> Committed:
        """Update every unit of the place with the gradients in its buffers."""
        factor = (
            clip_factor(pending.grad_norm, self._task.train.clip_grad) * self._full_tokens / pending.tokens
        )
        if factor != 1.0:
            place.gradients.scale(factor)
        rate = self._rate.at(pending.iteration)
        self._adam.step(place.chunk.specs, self._inventory.states, place.gradients, rate)
        self._iteration = pending.iteration
        self._phase = Phase.IDLE
        # What moved away was kept in case the epoch should not come to this.
        self._inventory.keep_only(place.chunk.needed)
        seconds = 0.0 if began is None else time.perf_counter() - began
        committed = Committed(
            pending.iteration, pending.loss, pending.grad_norm, rate, pending.tokens, seconds
        )
        self._recent.append(committed)
        return committed

    def _unfinished(self) -> Kept | None:
        """What there is of the next iteration; also what was taken over for it and not gone on with yet."""
        if self._kept is None and self._place is not None:
            return self._place.progress.kept(self._iteration + 1, copy=False)
        return self._kept

    # -- a new epoch -----------------------------------------------------------------------------------

    def _release(self) -> None:
        """Leave the epoch before: nothing of it runs or writes to this rank's state afterwards."""
        self._guard.cut()
        self._guard = SocketGuard()
        if self._place is not None:
            self._remains.bury(self._place.groups, self._place.gradients.unfinished())
        groups.destroy_groups()
        self._remains.clear()

    def _settle_pending(self, order: Rebuild) -> Committed | None:
        """Apply the iteration that was under way, if it counts; else forget it."""
        pending, place = order.commit, self._place
        committed = None
        if (
            pending is not None
            and place is not None
            and self._phase is Phase.REDUCED
            and pending.iteration == self._iteration + 1
        ):
            committed = self._apply(place, pending, None)
        self._phase = Phase.IDLE
        self._place = None
        return committed

    def _only_send(self, order: Rebuild, store: Store, guard: SocketGuard, attempt: Attempt) -> RebuildReport:
        """Hand over what this rank alone holds; it has no part in the epoch afterwards."""
        clock = Clock()
        self._build_groups(order, self._places.plan(order), store, guard)
        groups_seconds = clock.lap()
        self._inventory.send(order)
        return RebuildReport(
            epoch=order.epoch,
            commit_seconds=0.0,
            groups_seconds=groups_seconds,
            chunk_seconds=0.0,
            state_seconds=clock.lap(),
            warm_seconds=0.0,
            chunk_kept=False,
            bytes_by_source={},
        )

    def _take_place(
        self, order: Rebuild, store: Store, guard: SocketGuard, chunk: Chunk | None, attempt: Attempt
    ) -> tuple[Place, RebuildReport]:
        clock = Clock()
        self._marks.take(WorkPhase.GROUPS)
        plan = self._places.plan(order)
        built = self._build_groups(order, plan, store, guard)
        return self._places.take(order, plan, built, chunk, self._kept, attempt, clock)

    def _build_groups(
        self, order: Rebuild, plan: groups.GroupPlan, store: Store, guard: SocketGuard
    ) -> groups.Groups:
        world_size = order.layout.world_size + len(order.senders)
        guard.begin(world_size)
        try:
            self._check_cut()
            return groups.build_groups(
                plan,
                PrefixStore(f"epoch-{order.epoch}", store),
                order.rank,
                world_size,
                building=self._building,
                using=self._using,
            )
        finally:
            guard.end()

    # -- faults ----------------------------------------------------------------------------------------

    def _is_cut(self) -> bool:
        return self._epoch < self._cut_before

    def _check_cut(self) -> None:
        if self._is_cut():
            raise GroupsCut(f"epoch {self._epoch} was cut")

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Name what a broken connection looks like from inside torch."""
        try:
            yield
        except WorkLeftBehind:
            # It may still write to the chunk and its gradients, some day; the state is not in its reach.
            self._chunk = None
            raise
        except GroupsCut:
            raise
        except Exception as error:
            if self._is_cut():
                raise GroupsCut(f"epoch {self._epoch} was cut") from error
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                raise PeerLost(f"a connection of epoch {self._epoch} broke: {error}") from error
            raise

"""Real ranks for tests: forked processes, each with an engine, driven over a pipe."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.runtime.folder_store import FolderStore
from unicron_hpc.config.sections import CheckpointSettings, DataSettings, ModelSettings, TrainSettings
from unicron_hpc.config.settings import TaskSettings
from unicron_hpc.planner.layout import Layout, Replica, Seat, Stage
from unicron_hpc.planner.movement import Move
from unicron_hpc.planner.reuse import Reuse, Unfinished, plan_reuse
from unicron_hpc.planner.units import holders
from unicron_hpc.runtime import attempt, gradients
from unicron_hpc.runtime.engine import Engine
from unicron_hpc.runtime.orders import Holdings, PendingCommit, Phase, Rebuild
from unicron_hpc.runtime.store import ControlStore

PATIENCE = 10.0


def small_task(**changes: Any) -> TaskSettings:
    """A GPT of four layers; `changes` go to the model or the training, wherever the name is known."""
    model = {
        "num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 16, "swiglu": False,
        "ffn_hidden_size": 64, "num_query_groups": 4, "kv_channels": 8, "max_position_embeddings": 16,
        "vocab_size": 128,
    }  # fmt: skip
    train = {
        "micro_batch_size": 2, "global_batch_size": 16, "train_iters": 20, "lr": 1e-2, "lr_warmup_iters": 2,
        "lr_decay_iters": 20, "weight_decay": 0.1,
    }  # fmt: skip
    for key, value in changes.items():
        (model if key in ModelSettings.model_fields else train)[key] = value
    return TaskSettings.model_construct(
        name="test",
        model=ModelSettings.model_construct(**model),
        train=TrainSettings.model_construct(**train),
        data=DataSettings.model_construct(),
        checkpoint=CheckpointSettings.model_construct(dir=Path("unused")),
    )


class Numbers:
    """Micro-batches that follow from (iteration, index) alone."""

    def __init__(self, task: TaskSettings, masked: bool = False) -> None:
        self._shape = (task.train.fixed_micro_batch_size, task.model.seq_length)
        self._vocab = task.model.vocab_size
        self._masked = masked
        #: What this process has been asked for, and for what it raises an exception.
        self.read: list[tuple[int, int]] = []
        self.fails_at: tuple[int, int] | None = None

    def micro_batch(self, iteration: int, index: int) -> dict[str, torch.Tensor]:
        if self.fails_at == (iteration, index):
            self.fails_at = None
            raise Stalled
        self.read.append((iteration, index))
        generator = torch.Generator().manual_seed(iteration * 1000 + index)
        rows, columns = self._shape
        # Easy to learn, so that losses fall: each token follows from the one before.
        start = torch.randint(0, self._vocab, (rows, 1), generator=generator)
        text = (start + 3 * torch.arange(columns + 1)) % self._vocab
        mask = torch.ones(self._shape)
        if self._masked:
            mask = (torch.rand(self._shape, generator=generator) < 0.3 + 0.1 * (index % 4)).float()
        return {
            "tokens": text[:, :-1].contiguous(),
            "labels": text[:, 1:].contiguous(),
            "loss_mask": mask,
            "position_ids": torch.arange(columns).expand(self._shape).contiguous(),
        }


def layout(
    task: TaskSettings, *pipelines: list[int], shares: list[int] | None = None, tensor: int = 1
) -> Layout:
    """Pipelines given as layers per stage, e.g. `[2, 2], [4]`; ranks are numbered in that order."""
    total = task.train.micro_batches
    shares = shares or [total // len(pipelines)] * len(pipelines)
    replicas, rank, first_micro = [], 0, 0
    for layers, share in zip(pipelines, shares, strict=True):
        stages, first = [], 0
        for count in layers:
            stages.append(Stage(first, first + count - 1, tuple(range(rank, rank + tensor))))
            rank += tensor
            first += count
        replicas.append(Replica(tuple(stages), first_micro, share))
        first_micro += share
    assert first_micro == total
    seats = tuple(Seat("here", slot) for slot in range(rank))
    return Layout(task.model.num_layers, tensor, task.train.fixed_micro_batch_size, tuple(replicas), seats)


def moves_for(
    task: TaskSettings, new: Layout, held: list[Holdings | None], iteration: int
) -> tuple[Move, ...]:
    """What must be sent so that every rank of `new` has its units; None is a fresh process."""
    keys = [
        {(u.unit, u.tensor_index): u.bytes for u in h.units if u.iteration == iteration} if h else {}
        for h in held
    ]
    moves = []
    needs = holders(new, tied=task.model.tied, learned_positions=task.model.learned_positions)
    for key, ranks in needs.items():
        for rank in ranks:
            if key not in keys[rank]:
                source = next(r for r, have in enumerate(keys) if key in have)
                moves.append(Move(key[0], key[1], source, rank, keys[source][key]))
    return tuple(moves)


@dataclass
class Answer:
    """One command's result; `error` is the exception's class name."""

    value: Any = None
    error: str = ""
    text: str = ""


class Rank:
    """One forked process."""

    def __init__(self, task: TaskSettings, data: Any, store: Path, segment: int, **engine: Any) -> None:
        ours, theirs = Pipe()
        self.pipe = ours
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                ours.close()
                gradients.SEGMENT = segment
                _serve(theirs, task, data, store, engine)
                status = 0
            except EOFError:
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()
        self._alive = True

    def send(self, name: str, *arguments: Any) -> None:
        self.pipe.send((name, arguments))

    def answer(self) -> Answer:
        if not self.pipe.poll(PATIENCE):
            os.kill(self.pid, signal.SIGUSR1)  # its stacks go to stderr
            self.pipe.poll(1.0)
            raise TimeoutError(f"rank process {self.pid} did not answer")
        return self.pipe.recv()

    def ask(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        answer = self.answer()
        assert not answer.error, answer.text
        return answer.value

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.end()

    def end(self) -> None:
        if self._alive:
            self._alive = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pipe.close()


def _serve(
    pipe: Connection, task: TaskSettings, data: Any, store: Path, engine_options: dict[str, Any]
) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the test
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    engine = Engine(task, data, **engine_options)
    commands: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue()

    over = [0]

    def meeting_place(epoch: int) -> ControlStore:
        return ControlStore(FolderStore(Path(f"{store}-{epoch}"), lambda: over[-1] > epoch).ask)

    def listen() -> None:
        while True:
            try:
                name, arguments = pipe.recv()
            except (EOFError, OSError):
                os._exit(0)
            if name in WAITS:
                _await_communication(engine, commands, WAITS[name])
                name = "cut"
            if name == "cut":
                over.append(arguments[0])
                engine.cut(*arguments)
            else:
                commands.put((name, arguments))

    threading.Thread(target=listen, daemon=True).start()
    actions = {
        "rebuild": lambda order: engine.rebuild(order, meeting_place(order.epoch)),
        "run": lambda count: [engine.run_iteration() for _ in range(count)],
        "holdings": lambda: engine.holdings(),
        "weights": lambda: {k: (s.iteration, s.flat.tolist()) for k, s in engine.snapshot().items()},
        "damage": lambda: _damage_digests(),
        "deafen": lambda: setattr(engine._guard, "cut", lambda: 0),
        "stall_commit": lambda spared: _stall_commit(engine, spared),
        "stall_sums": lambda after: _stall_sums(after),
        "read": lambda: list(data.read),
        "ask_to_save": lambda: engine.ask_to_save(),
        "saves_after": lambda: engine.saves_after,
        "fail_at": lambda iteration, index: setattr(data, "fails_at", (iteration, index)),
    }
    while True:
        name, arguments = commands.get()
        try:
            answer = Answer(actions[name](*arguments))
        except Exception as error:
            answer = Answer(None, type(error).__name__, traceback.format_exc())
        commands.task_done()
        pipe.send(answer)


#: Commands that cut a rank once it waits for a peer, and in which functions.
WAITS: dict[str, tuple[str, ...]] = {
    "cut_when_waiting": (),
    "cut_when_summing": ("_finish_oldest", "agree"),
    "cut_when_testing": ("self_test",),
}


def _await_communication(engine: Engine, commands: queue.Queue[Any], functions: tuple[str, ...]) -> None:
    """Return once the engine's worker waits for a peer, below one of these functions, or has ended."""
    while commands.unfinished_tasks:
        thread = engine._worker._thread
        frame = sys._current_frames().get(thread.ident) if thread else None
        if frame is not None and frame.f_code.co_filename.endswith(attempt._WAITING_FILES):
            if not functions:
                return
            if not {function.name for function in traceback.extract_stack(frame)}.isdisjoint(functions):
                return
        time.sleep(0.001)


def _damage_digests() -> None:
    """From now on this process sends digests of other bytes than it sends."""
    from unicron_hpc.runtime import migration

    migration._digest_words = lambda state: [1, 2]


class Stalled(Exception):
    """Stands for a fault, or a cut, that comes to a rank at this very place."""


def _stall_commit(engine: Engine, spared: int) -> None:
    """The next commit's reduction takes place, but only rank `spared` learns its result."""
    from unicron_hpc.runtime import commit

    agree = commit.agree

    def stalled(own: commit.Totals, device: torch.device, members: dist.ProcessGroup) -> commit.Totals:
        totals = agree(own, device, members)
        commit.agree = agree
        if dist.get_rank() != spared:
            raise Stalled
        return totals

    commit.agree = stalled


def _stall_sums(after: int) -> None:
    """After so many sums of gradients this process learns of no more."""
    finish = gradients.Gradients._finish_oldest
    left = [after]

    def stalled(self: gradients.Gradients) -> None:
        if left[0] == 0:
            gradients.Gradients._finish_oldest = finish
            raise Stalled
        left[0] -= 1
        finish(self)

    gradients.Gradients._finish_oldest = stalled


@dataclass
class World:
    """Some ranks and where they meet; gradients are summed in segments of so many bytes."""

    task: TaskSettings
    store: Path
    data: Any = None
    segment: int = gradients.SEGMENT
    engine: dict[str, Any] = field(default_factory=dict)
    ranks: list[Rank] = field(default_factory=list)
    epoch: int = -1
    reuse: Reuse | None = None

    def __post_init__(self) -> None:
        self.data = self.data or Numbers(self.task)

    def fresh(self) -> Rank:
        return Rank(self.task, self.data, self.store, self.segment, **self.engine)

    def start(self, plan: Layout) -> None:
        """A new training."""
        self.ranks = [self.fresh() for _ in range(plan.world_size)]
        self.rebuild(plan, initial=True)

    def rebuild(self, plan: Layout, iteration: int = 0, **order: Any) -> list[Any]:
        answers = self.try_rebuild(plan, iteration, **order)
        assert not any(a.error for a in answers), "\n".join(a.text for a in answers)
        return [a.value for a in answers]

    def send_rebuild(
        self,
        plan: Layout,
        iteration: int = 0,
        *,
        unfinished: Mapping[int, Unfinished] | None = None,
        **order: Any,
    ) -> None:
        """Order a new epoch; `unfinished` has what ranks kept of the next iteration, by their new numbers."""
        self.epoch += 1
        model = self.task.model
        reuse = plan_reuse(
            unfinished or {},
            plan,
            iteration=iteration + 1,
            tied=model.tied,
            learned_positions=model.learned_positions,
        )
        self.reuse = reuse[0] if reuse else None
        for rank, process in enumerate(self.ranks):
            own = {"reuse": reuse[rank]} if reuse and rank in reuse else {}
            process.send("rebuild", Rebuild(self.epoch, rank, plan, iteration, **order, **own))

    def try_rebuild(self, plan: Layout, iteration: int = 0, **order: Any) -> list[Answer]:
        self.send_rebuild(plan, iteration, **order)
        waiting = {process.pipe: rank for rank, process in enumerate(self.ranks)}
        answers: dict[int, Answer] = {}
        while waiting:
            ready = wait(list(waiting), PATIENCE)
            if not ready:
                for rank in waiting.values():
                    os.kill(self.ranks[rank].pid, signal.SIGUSR1)  # their stacks go to stderr
            assert ready, f"no answer from ranks {sorted(waiting.values())}"
            for pipe in ready:
                rank = waiting.pop(pipe)
                answers[rank] = self.ranks[rank].answer()
                if answers[rank].error:  # the others would wait for it
                    for other in waiting.values():
                        self.ranks[other].send("cut", self.epoch + 1)
        return [answers[rank] for rank in range(len(self.ranks))]

    def send(self, name: str, *arguments: Any) -> None:
        for process in self.ranks:
            process.send(name, *arguments)

    def run(self, count: int) -> list[Any]:
        """Commit `count` iterations; every rank must report the same."""
        self.send("run", count)
        answers = [process.answer() for process in self.ranks]
        assert not any(a.error for a in answers), "\n".join(a.text for a in answers)
        first = answers[0].value
        for answer in answers[1:]:
            assert [(c.iteration, c.loss, c.grad_norm) for c in answer.value] == [
                (c.iteration, c.loss, c.grad_norm) for c in first
            ]
        return first

    def recover(self, plan: Layout, survivors: list[int | None]) -> list[Any]:
        """Go on under `plan`: `survivors[new rank]` is the old rank that takes it, None for a fresh process.

        Does what a coordinator does: cut, collect holdings, decide the commit, order.
        """
        old = self.ranks
        kept = [old[r] for r in survivors if r is not None]
        for process in kept:
            process.send("cut", self.epoch + 1)
        held = {id(process): process.ask("holdings") for process in kept}
        iteration = max(h.iteration for h in held.values())
        commit = None
        if any(h.iteration < iteration for h in held.values()):
            done = next(h for h in held.values() if h.iteration == iteration).recent[-1]
            commit = PendingCommit.of(done)
            behind = [h for h in held.values() if h.iteration < iteration]
            assert all(h.phase is Phase.REDUCED and h.pending_iteration == iteration for h in behind)
        self.ranks = [self.fresh() if r is None else old[r] for r in survivors]
        by_rank = [None if r is None else _after(held[id(old[r])], iteration) for r in survivors]
        moves = moves_for(self.task, plan, by_rank, iteration)
        unfinished = {
            new: report
            for new, r in enumerate(survivors)
            if r is not None and (report := held[id(old[r])].unfinished)
        }
        return self.rebuild(plan, iteration, moves=moves, commit=commit, unfinished=unfinished)

    def close(self) -> None:
        for process in self.ranks:
            process.end()


def _after(held: Holdings, iteration: int) -> Holdings:
    """What a rank will hold once it has applied the pending update."""
    import msgspec

    if held.iteration == iteration:
        return held
    units = tuple(
        msgspec.structs.replace(u, iteration=iteration) for u in held.units if u.iteration == held.iteration
    )
    return msgspec.structs.replace(held, units=units)

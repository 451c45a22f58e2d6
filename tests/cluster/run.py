"""A run as its run folder tells it: the journal, the losses, and waiting for either with a bound."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from unicron_hpc.report.journal import EVENTS, METRICS, SUMMARY, read_lines

T = TypeVar("T")
Event = dict[str, Any]

#: Longest wait for one event, in seconds: two cores may be shared with much else.
PATIENCE = 180.0
#: Of the small training.
ITERATIONS, LAYERS, MICRO_BATCHES = 120, 5, 4


class Run:
    """The run in `folder`; where that is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def events(self, kind: str = "", **fields: Any) -> list[Event]:
        """Return the journal's events of a type that have these fields; all of them by default."""
        return [
            event
            for event in read_lines(self.folder / EVENTS)
            if (not kind or event["type"] == kind) and all(event.get(k) == v for k, v in fields.items())
        ]

    def losses(self) -> dict[int, float]:
        """Return the loss of each iteration; of one that was trained twice the later."""
        return {line["iteration"]: line["loss"] for line in read_lines(self.folder / METRICS)}

    def iteration(self) -> int:
        """Return the last committed iteration; 0 before the first."""
        return max(self.losses(), default=0)

    def summary(self) -> dict[str, Any] | None:
        """Return summary.json; None while the run goes on."""
        path = self.folder / SUMMARY
        return json.loads(path.read_text()) if path.exists() else None

    def ranks(self) -> list[Event]:
        """Return the ranks of the newest epoch, as `transition_finished` tells them."""
        ranks: list[Event] = self.events("transition_finished")[-1]["ranks"]
        return ranks

    def pids(self) -> dict[tuple[str, int], int]:
        """Return the process of each seat (node, slot) of the newest epoch."""
        return {(rank["node"], rank["slot"]): rank["pid"] for rank in self.ranks()}

    def wait(self, what: str, probe: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
        """Return the first answer of `probe` that is true; fail when the run ends or the time is up before.

        The failure tells the run's story, so that nobody has to come back for it.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = bool(self.events("job_finished"))
            if answer := probe():
                return answer
            if ended:
                raise AssertionError(f"the run ended without {what}\n{self.story()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {seconds:g} s\n{self.story()}")
            time.sleep(0.05)

    def wait_event(self, kind: str, *, count: int = 1, **fields: Any) -> Event:
        """Return the `count`-th event of a type with these fields, as soon as it is there."""
        words = f"{kind} {fields} (number {count})"
        return self.wait(words, lambda: self.events(kind, **fields)[count - 1 : count])[0]

    def wait_iteration(self, iteration: int) -> None:
        """Wait until an iteration is committed."""
        self.wait(f"iteration {iteration}", lambda: self.iteration() >= iteration)

    def wait_recovered(self, *, count: int) -> Event:
        """Return the `count`-th `incident_closed`: the first commit after a fault."""
        return self.wait_event("incident_closed", count=count)

    def story(self) -> str:
        """Tell the journal's end and the agents' last words, for a failed test."""
        lines = [str({k: v for k, v in event.items() if k != "ranks"}) for event in self.events()[-25:]]
        lines.append(f"iteration {self.iteration()}")
        for log in sorted((self.folder / "logs").glob("agent-*.log")):
            lines += [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-12:]]
        for output in self.folder.parent.glob(f"{self.folder.name}.out"):
            lines += [f"--- {output.name}", *output.read_text(errors="replace").splitlines()[-12:]]
        return "\n".join(lines)


def covers_every_layer_once(replica: Mapping[str, Any], num_layers: int) -> bool:
    """Tell whether the stages of a `plan_chosen` replica are the model's layers, in order and without gap."""
    layers = [n for stage in replica["stages"] for n in range(stage["layers"][0], stage["layers"][1] + 1)]
    return layers == list(range(layers[0], layers[0] + num_layers))


def stage_sizes(plan: Mapping[str, Any]) -> list[list[int]]:
    """Return how many layers each stage of each replica of a `plan_chosen` has."""
    return [
        [stage["layers"][1] - stage["layers"][0] + 1 for stage in replica["stages"]]
        for replica in plan["replicas"]
    ]


def processes_with(*settings: str) -> dict[int, str]:
    """Return pid and command of every process that was started with all these `NAME=value` variables."""
    wanted = {setting.encode() for setting in settings}
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


def worst_difference(losses: Mapping[int, float], reference: Mapping[int, float]) -> float:
    """Return the largest relative difference of two runs' losses over the iterations of the first."""
    return max(abs(losses[i] - reference[i]) / abs(reference[i]) for i in losses)


def settings_text(*, name: str, **sections: Mapping[str, Any]) -> str:
    """Return a train.yaml as JSON (which is YAML): the small model, changed section by section.

    It is wide and its sequences short, so that summing gradients is dear beside computing them: then the
    planner prefers pipelines to more replicas. Five layers never divide evenly over the stages. At this
    learning rate rounding stays rounding: runs of different layouts differ by 1e-7. (At 1e-3 this model's
    training is chaotic, and two runs without any fault differ by 1e-5 to 1e-4 after a hundred iterations.)
    """
    base: dict[str, dict[str, Any]] = {
        "slurm": {"nodes": 4, "time": 10},
        "model": {
            "num_layers": LAYERS,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "seq_length": 8,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
        },
        "train": {
            "micro_batch_size": 1,
            "global_batch_size": MICRO_BATCHES,
            "train_iters": ITERATIONS,
            "lr_decay_iters": ITERATIONS,
            "lr": 3e-4,
            "lr_warmup_iters": 5,
            "pipeline_model_parallel_size": 2,
        },
        "data": {"text": "tiny.txt"},
        "checkpoint": {"save_interval": 0},
        "recovery": {},
    }
    whole = {key: {**values, **sections.get(key, {})} for key, values in base.items()}
    return json.dumps({"name": name, **whole}, indent=1)

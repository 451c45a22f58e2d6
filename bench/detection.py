"""How long faults go unnoticed, who is blamed for them, and how often there is an alarm without a fault."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from common.detected import Alarms, Injection, injection
from common.ending import until_stopped
from common.figures import Spread, losses, worst_difference
from common.load import busy_words, foreign_load
from common.places import ClusterError, Local, Place, Slurm
from common.stress import busy_cores, slow_disk
from common.watching import BenchError, Watched

TRAIN_YAML = Path(__file__).with_name("recovery.yaml")
ACTIVE = 4
#: Spares of a run in which nodes are lost.
MOST_SPARES = 5
#: Iterations between two faults: the run is steady again, and knows its pace.
SETTLE = 25
#: Losses of a run with faults may differ from those of one without by this much, relatively.
TOLERANCE = 1e-5
#: Runs with faults neither write checkpoints nor find those of others.
NO_CHECKPOINTS = {"checkpoint.save_interval": 0, "checkpoint.resume": "false"}
#: So many faults on one node would have it taken out, rightly; here it is healthy.
MANY_FAULTS = {"recovery.max_faults_per_node": 1000}
#: Of the soak: one every few seconds.
SOAK_CHECKPOINTS = {"checkpoint.save_interval": 25, "checkpoint.resume": "false"}
#: kind -> the drills that make it, in turn; and how long detection may take at most, in seconds (a hang:
#: beyond three iterations).
KINDS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "process_death": (("kill",), 0.1),
    "exception": (("exception-forward",), 0.1),
    "node_lost": (("node-kill",), 3.0),
    "hang_over_three_iterations": (("stop-rank", "gil"), 0.5),
}


class Bench:
    """All measurements at one place.

    Parameters
    ----------
    place
        Where to run.
    count
        Faults of each kind.
    say
        Takes progress, a line at a time.
    """

    def __init__(self, place: Place, count: int, say: Callable[[str], None]) -> None:
        self._place = place
        self._count = count
        self._say = say
        self._accounted: dict[Path, list[int]] = {}
        self.made: list[Injection] = []
        self.alarms = Alarms()
        self.losses: dict[str, dict[int, float]] = {}
        self.soaked = 0.0
        self.load = foreign_load()

    def run(self, kinds: list[str], soak: float) -> None:
        """Measure everything that is asked for, then train without faults for the losses."""
        ranks = [kind for kind in kinds if kind != "node_lost"]
        if ranks:
            run = self._submit("faults of ranks", {"slurm.spares": 0, **NO_CHECKPOINTS})
            run.wait_iteration(SETTLE)
            for number in range(self._count):
                for kind in ranks:  # in turn, so that a drift of the machine meets all alike
                    self._make(run, kind, number)
            self._end("faults of ranks", run)
        if "node_lost" in kinds:
            self._lose_nodes()
        if self.losses:
            run = self._submit("no faults", {"slurm.spares": 0, **NO_CHECKPOINTS})
            run.wait_iteration(max(max(found) for found in self.losses.values()), seconds=900)
            self._end("no faults", run)
        if soak:
            self._soak(soak)

    def _lose_nodes(self) -> None:
        done = 0
        while done < self._count:
            spares = min(self._count - done, MOST_SPARES)
            run = self._submit("lost nodes", {"slurm.spares": spares, **NO_CHECKPOINTS})
            run.wait_iteration(SETTLE)
            run.wait_for("all spares to be warm", partial(_all_warm, run, ACTIVE + spares))
            for _ in range(spares):
                self._make(run, "node_lost", done)
                done += 1
            self._end(f"lost nodes {done}", run)

    def _make(self, run: Watched, kind: str, number: int) -> None:
        """Make one fault, each time to another rank, and wait for what comes of it."""
        run.wait_iteration(run.iteration + SETTLE)
        drills, _ = KINDS[kind]
        drill = drills[number % len(drills)]
        since = len(run.events)
        words = [sys.executable, "-m", "unicron_hpc.cli.main", "drill", "run", drill, "--yes", "--json"]
        if kind != "node_lost":
            rank = run.ranks[len(self.made) % len(run.ranks)]
            words += ["--rank", str(rank["rank"])]
        done = self._place.as_owner([*words, f"{run.folder}/"])
        if not done.stdout:
            raise BenchError(f"{drill} could not be made: {done.stderr.strip()}")
        told = json.loads(done.stdout)
        made = injection(kind, told, run.events, run.metrics, since, node_is_bad=kind == "node_lost")
        self.made.append(made)
        self._accounted.setdefault(run.folder, []).extend(made.incidents)
        late = f", {made.over_three:+.3f} s over three iterations" if kind.startswith("hang") else ""
        self._say(f"  {made.what}: {told['error']} after {made.detection:.3f} s{late} {' '.join(made.wrong)}")

    def _soak(self, seconds: float) -> None:
        """Train with checkpoints on a slow disk and count the alarms."""
        run = self._submit("soak", {"slurm.spares": 1, **SOAK_CHECKPOINTS})
        run.wait_iteration(5)
        begun, first = time.monotonic(), run.iteration
        with slow_disk(run.folder.parent):
            while self.soaked < seconds:
                time.sleep(1.0)
                self.soaked = time.monotonic() - begun
                if over := run.of_type("job_finished"):
                    raise BenchError(f"the soak ended after {self.soaked:.0f} s: {over[0].get('cause')}")
        saved = len(run.of_type("checkpoint_saved"))
        self._say(f"  {self.soaked:.0f} s, {run.iteration - first} iterations, {saved} checkpoints")
        self._end("soak", run, compare=False)

    def _submit(self, what: str, settings: Mapping[str, object]) -> Watched:
        self._say(f"{what}: submitting {ACTIVE} nodes and {settings.get('slurm.spares', 0)} spares")
        return self._place.submit(TRAIN_YAML, {"slurm.nodes": ACTIVE, **MANY_FAULTS, **settings})

    def _end(self, name: str, run: Watched, *, compare: bool = True) -> None:
        if compare:
            self.losses[name] = losses(run.metrics)
        # Before it is ended: how the end is brought about is no concern of detection.
        self.alarms.look(name, run.events, self._accounted.get(run.folder, []))
        self._place.end(run)
        self._place.restore()

    # ------------------------------------------------------------ results

    def of_kind(self, kind: str) -> list[float]:
        """Return the figures of a kind, in seconds."""
        hang = kind == "hang_over_three_iterations"
        return [m.over_three if hang else m.detection for m in self.made if m.kind == kind]

    def worst_loss(self) -> float:
        """Return the largest relative difference of any loss from the one without faults."""
        wanted = self.losses.get("no faults", {})
        return max((worst_difference(found, wanted)[0] for found in self.losses.values()), default=0.0)

    def wrong(self) -> list[str]:
        """Return what must not be: culprits missed, healthy nodes drained, other losses."""
        lines = [f"{made.what}: {line}" for made in self.made for line in made.wrong]
        lines += [f"false alarm in {line}" for line in self.alarms.false]
        if self.worst_loss() > TOLERANCE:
            lines.append(f"losses differ by {self.worst_loss():.2g} from those without faults")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return medians in seconds, and the counts."""
        told: dict[str, Any] = {}
        for kind in KINDS:
            if values := self.of_kind(kind):
                spread = Spread.of(values)
                told[kind] = spread.median
                told.setdefault("ranges", {})[kind] = [spread.low, spread.high]
                told.setdefault("n", {})[kind] = len(values)
        told["false_alarms"] = len(self.alarms.false)
        told["culprits"] = [sum(made.named for made in self.made), len(self.made)]
        told["healthy_drained"] = sum(made.drained for made in self.made)
        told["soak_seconds"] = self.soaked
        told["worst_loss_difference"] = self.worst_loss()
        told["place"] = self._place.name
        told["load"] = self.load
        return told


def _all_warm(run: Watched, nodes: int) -> bool:
    """Whether the imports of all nodes are done: their agents say so in their logs."""
    logs = (run.folder / "logs").glob("agent-*.log")
    return sum("zygote warm" in log.read_text(errors="replace") for log in logs) >= nodes


def report(bench: Bench, place: Place) -> list[str]:
    """Return the table and the verdicts, a line each."""
    lines = ["", f"{place.name}; medians (lowest..highest) in seconds"]
    for kind, (drills, _) in KINDS.items():
        if values := bench.of_kind(kind):
            lines.append(f"{kind:28}{Spread.of(values)!s:>26}  n={len(values)}  {', '.join(drills)}")
    lines += [*busy_words(bench.load), ""]
    for kind, (_, aim) in KINDS.items():
        if values := bench.of_kind(kind):
            median = Spread.of(values).median
            met = "met   " if median <= aim else "MISSED"
            lines.append(f"{met} {kind} at most {aim:g} s: {median:.3f} s")
    told = bench.as_json()
    named, injected = told["culprits"]
    for what, kept, figure in (
        ("every culprit named, nobody else", named == injected, f"{named} of {injected}"),
        ("no healthy node drained", told["healthy_drained"] == 0, str(told["healthy_drained"])),
        ("no false alarm", told["false_alarms"] == 0, f"{told['false_alarms']} (soak {bench.soaked:.0f} s)"),
        ("losses as without faults", bench.worst_loss() <= TOLERANCE, f"worst {bench.worst_loss():.1e}"),
    ):
        lines.append(f"{'met   ' if kept else 'MISSED'} {what}: {figure}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/detection", description=__doc__)
    parser.add_argument("--faults", type=int, default=10, help="faults of each kind (default 10)")
    parser.add_argument("--json", action="store_true", help="medians as JSON on stdout, the rest on stderr")
    parser.add_argument(
        "--cluster", choices=("embedded", "local"), default="embedded", help="with Slurm (default) or without"
    )
    parser.add_argument("--only", action="append", choices=list(KINDS), help="only this; may be repeated")
    parser.add_argument(
        "--load",
        type=int,
        nargs="?",
        const=2 * len(os.sched_getaffinity(0)),
        default=0,
        metavar="N",
        help="keep N processes busy on top, all the while (without N: two for each core)",
    )
    parser.add_argument(
        "--soak",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="train so long with checkpoints on a slow disk, and count alarms (default 120; 0: not)",
    )
    parser.add_argument("--only-soak", action="store_true", help="make no faults")
    options = parser.parse_args()
    if options.faults < 1 or options.load < 0 or options.soak < 0:
        parser.error("--faults must be at least 1, --load and --soak not negative")
    out = sys.stderr if options.json else sys.stdout
    begun = time.monotonic()

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    kinds = [] if options.only_soak else options.only or list(KINDS)
    try:
        with ExitStack() as stack:
            stack.enter_context(until_stopped())
            place = stack.enter_context(closing(place_called(options.cluster, options.faults)))
            bench = Bench(place, options.faults, say)
            stack.enter_context(busy_cores(options.load) if options.load else contextlib.nullcontext())
            bench.run(kinds, options.soak)
    except (BenchError, ClusterError) as error:
        print(f"bench/detection: {error}", file=sys.stderr)
        return 1
    for line in report(bench, place):
        say(line)
    say(f"took {time.monotonic() - begun:.0f} s; {options.load} busy processes on top")
    if options.json:
        print(json.dumps(bench.as_json(), indent=2))
    wrong = bench.wrong()
    for line in wrong:
        print(f"bench/detection: WRONG: {line}", file=sys.stderr)
    return 1 if wrong else 0


def place_called(name: str, faults: int) -> Place:
    """Return the place, ready to use."""
    return Local() if name == "local" else Slurm(ACTIVE + min(faults, MOST_SPARES))


if __name__ == "__main__":
    sys.exit(main())

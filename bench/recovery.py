"""How long faults interrupt a training, beside starting it again from its newest checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from common.ending import until_stopped
from common.faults import Faults, Found
from common.figures import STEPS, Healed, Spread, losses, worst_difference
from common.load import busy_words, foreign_load
from common.places import ClusterError, Local, Place, Slurm
from common.restarts import Restart, measure_restarts
from common.watching import BenchError, Watched

TRAIN_YAML = Path(__file__).with_name("recovery.yaml")
ACTIVE = 4
#: Spares of a run: each node's processes want memory, and some seconds of a core for their imports.
MOST_SPARES = 5
#: Losses of a run with faults may differ from those of one without by this much, relatively.
TOLERANCE = 1e-5
#: Runs other than the restarted one neither write checkpoints nor find the others'.
NO_CHECKPOINTS = {"checkpoint.save_interval": 0, "checkpoint.resume": "false"}
#: What `--json` gives for each kind of fault, in seconds; the rest of `STEPS` goes along.
SCENARIOS = {
    "rank_kill": "a rank killed; its node forks a warm one",
    "node_kill": "a node killed; a spare takes its seat",
    "node_shrink": "a node killed, no spare left; layers are redistributed",
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
        self.healed: dict[str, list[Healed]] = {name: [] for name in SCENARIOS}
        self.restarts: list[Restart] = []
        self.losses: dict[str, dict[int, float]] = {}
        self.steady = 0.0
        self.load = foreign_load()

    def run(self, scenarios: list[str]) -> None:
        """Measure everything that is asked for, then run without faults for the losses."""
        if "rank_kill" in scenarios:
            self._faults("rank_kill", spares=0, at_once=self._count)
        if "restart" in scenarios:
            self._restart()
        if "node_kill" in scenarios:
            spares = min(self._count, MOST_SPARES)
            self._faults("node_kill", spares=spares, at_once=spares)
        if "node_shrink" in scenarios:
            # From four nodes to three to two; one node alone would have no majority without slurmctld.
            self._faults("node_shrink", spares=0, at_once=2)
        self._without_faults(max(max(found, default=1) for found in self.losses.values()))

    def _faults(self, scenario: str, *, spares: int, at_once: int) -> None:
        done = self.healed[scenario]
        while len(done) < self._count:
            run = self._submit(scenario, {"slurm.spares": spares, **NO_CHECKPOINTS})
            faults = Faults(self._place, run)
            run.wait_iteration(5)
            if spares:
                run.wait_for("all spares to be warm", partial(self._all_warm, run, ACTIVE + spares))
            for _ in range(min(at_once, self._count - len(done))):
                phase = len(done) / self._count
                found = faults.kill_rank(phase) if scenario == "rank_kill" else faults.kill_node(phase)
                done.append(found.healed)
                self._tell(scenario, len(done), found)
            self._keep_losses(f"{scenario} {len(done)}", run)
            self._place.end(run)
            self._place.restore()

    @staticmethod
    def _all_warm(run: Watched, nodes: int) -> bool:
        """Every agent says in its log when its node's imports are done."""
        logs = (run.folder / "logs").glob("agent-*.log")
        return sum("zygote warm" in log.read_text(errors="replace") for log in logs) >= nodes

    def _restart(self) -> None:
        self._say("restart: killed whole, submitted again, newest checkpoint loaded")
        for restart in measure_restarts(
            self._place, self._count, lambda settings: self._submit("restart", settings)
        ):
            self.restarts.append(restart)
            self._say(
                f"  {len(self.restarts)}: {restart.to_commit:6.2f} s to the next iteration "
                f"(up and at the checkpoint after {restart.up:.2f} s, {restart.redone} iterations redone)"
            )
            self._keep_losses(f"restart {len(self.restarts)}", restart.run)
        self._place.restore()

    def _without_faults(self, until: int) -> None:
        run = self._submit("no faults", NO_CHECKPOINTS)
        run.wait_iteration(until, seconds=600)
        self.losses["no faults"] = losses(run.metrics)
        self.steady = Spread.of([record["iteration_seconds"] for record in run.metrics[3:]]).median
        self._place.end(run)

    def _submit(self, what: str, settings: Mapping[str, object]) -> Watched:
        self._say(f"{what}: submitting {ACTIVE} nodes and {settings.get('slurm.spares', 0)} spares")
        return self._place.submit(TRAIN_YAML, {"slurm.nodes": ACTIVE, **settings})

    def _keep_losses(self, name: str, run: Watched) -> None:
        self.losses[name] = losses(run.metrics)

    def _tell(self, scenario: str, number: int, found: Found) -> None:
        seconds = found.healed.seconds
        steps = "  ".join(f"{name} {seconds[name]:.3f}" for name in STEPS)
        self._say(f"  {scenario} {number}: {found.healed.what} -> {found.healed.reason}: {steps}")

    # ------------------------------------------------------------ results

    def wrong(self) -> list[str]:
        """Return what must not be: state from disk, other losses than without faults."""
        wrong = []
        reasons = {"rank_kill": "same seats", "node_kill": "spare", "node_shrink": "redistributed"}
        for scenario, faults in self.healed.items():
            for fault in faults:
                if fault.disk_bytes:
                    wrong.append(f"{scenario}: {fault.disk_bytes} bytes came from disk after {fault.what}")
                if fault.reason != reasons[scenario]:
                    wrong.append(f"{scenario}: {fault.what}: {fault.reason}, not {reasons[scenario]}")
        for name, found in self.losses.items():
            worst, compared = worst_difference(found, self.losses["no faults"])
            if worst > TOLERANCE or compared < len(found):
                wrong.append(f"{name}: losses differ by {worst:.2g} in {compared} of {len(found)} iterations")
        return wrong

    def worst_loss(self) -> float:
        """Return the largest relative difference of any loss from the one without faults."""
        return max(worst_difference(found, self.losses["no faults"])[0] for found in self.losses.values())

    def as_json(self) -> dict[str, Any]:
        """Return medians in seconds."""
        told: dict[str, Any] = {}
        for scenario, faults in self.healed.items():
            if faults:
                spreads = {name: Spread.of([f.seconds[name] for f in faults]) for name in STEPS}
                told[scenario] = {
                    **{name: spread.median for name, spread in spreads.items()},
                    "n": len(faults),
                    "ranges": {name: [spread.low, spread.high] for name, spread in spreads.items()},
                }
        if self.restarts:
            spread = Spread.of([r.to_commit for r in self.restarts])
            told["restart"] = {
                **dict.fromkeys(STEPS),
                "to_commit": spread.median,
                "ranges": {"to_commit": [spread.low, spread.high]},
                "up": Spread.of([r.up for r in self.restarts]).median,
                "redone_iterations": Spread.of([r.redone for r in self.restarts]).median,
                "n": len(self.restarts),
            }
        told["place"] = self._place.name
        told["iteration_seconds"] = self.steady
        told["worst_loss_difference"] = self.worst_loss()
        told["load"] = self.load
        return told


def report(bench: Bench, count: int, place: Place) -> list[str]:
    """Return the table and the verdicts, a line each."""
    kinds = [name for name in SCENARIOS if bench.healed[name]]
    width = 26
    lines = [
        "",
        f"{place.name}; medians (lowest..highest) of {count} faults each, in seconds; one iteration takes "
        f"{bench.steady:.3f}",
        f"{'':12}" + "".join(f"{name:>{width}}" for name in [*kinds, "restart"]),
    ]
    for step in STEPS:
        cells = [str(Spread.of([f.seconds[step] for f in bench.healed[name]])) for name in kinds]
        whole = str(Spread.of([r.to_commit for r in bench.restarts])) if bench.restarts else ""
        cells.append(whole if step == "to_commit" else "-")
        lines.append(f"{step:12}" + "".join(f"{cell:>{width}}" for cell in cells))
    if bench.restarts:
        restart = Spread.of([r.to_commit for r in bench.restarts]).median
        back = [r.redone for r in bench.restarts]
        own = [Spread.of([f.seconds["to_commit"] for f in bench.healed[name]]).median for name in kinds]
        ratios = [*(f"1/{restart / seconds:.1f}" for seconds in own), "1"]
        lines.append(f"{'of restart':12}" + "".join(f"{ratio:>{width}}" for ratio in ratios))
        lines.append(
            f"restart: every process killed at once and the same file submitted again in that moment; "
            f"checkpoint every 10 iterations, {min(back)} to {max(back)} iterations had to be computed again"
        )
    lines += busy_words(bench.load)
    lines += ["", *verdicts(bench)]
    return lines


def verdicts(bench: Bench) -> list[str]:
    """Return each aim and whether it was met."""
    lines = []

    def judge(aim: str, met: bool, figure: str) -> None:
        lines.append(f"{'met   ' if met else 'MISSED'} {aim}: {figure}")

    ranks, restarts = bench.healed["rank_kill"], bench.restarts
    if ranks and restarts:
        own = Spread.of([f.seconds["to_commit"] for f in ranks]).median
        whole = Spread.of([r.to_commit for r in restarts]).median
        aim = "rank kill to next commit at most 1/20 of the restart"
        judge(aim, own * 20 <= whole, f"1/{whole / own:.1f}")
    nodes = [*bench.healed["node_kill"], *bench.healed["node_shrink"]]
    if nodes:
        slowest = max(f.seconds["detection"] for f in nodes)
        judge("node loss detected within 3 s", slowest <= 3.0, f"slowest {slowest:.2f} s")
    for name in ("rank_kill", "node_kill"):
        if bench.healed[name]:
            spread = Spread.of([f.seconds["transition"] for f in bench.healed[name]])
            judge(f"transition below 1 s ({name})", spread.median < 1.0, str(spread))
    judge("same losses as without faults", bench.worst_loss() <= TOLERANCE, f"worst {bench.worst_loss():.1e}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/recovery", description=__doc__)
    parser.add_argument("--faults", type=int, default=5, help="faults of each kind (default 5)")
    parser.add_argument("--json", action="store_true", help="medians as JSON on stdout, the rest on stderr")
    parser.add_argument(
        "--cluster", choices=("embedded", "local"), default="embedded", help="with Slurm (default) or without"
    )
    parser.add_argument(
        "--only", action="append", choices=[*SCENARIOS, "restart"], help="only this; may be repeated"
    )
    options = parser.parse_args()
    if options.faults < 1:
        parser.error("--faults must be at least 1")
    out = sys.stderr if options.json else sys.stdout
    begun = time.monotonic()

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    try:
        with until_stopped(), closing(place_called(options.cluster, options.faults)) as place:
            bench = Bench(place, options.faults, say)
            bench.run(options.only or [*SCENARIOS, "restart"])
    except (BenchError, ClusterError) as error:
        print(f"bench/recovery: {error}", file=sys.stderr)
        return 1
    for line in report(bench, options.faults, place):
        say(line)
    say(f"took {time.monotonic() - begun:.0f} s")
    if options.json:
        print(json.dumps(bench.as_json(), indent=2))
    wrong = bench.wrong()
    for line in wrong:
        print(f"bench/recovery: WRONG: {line}", file=sys.stderr)
    return 1 if wrong else 0


def place_called(name: str, faults: int) -> Place:
    """Return the place, ready to use."""
    return Local() if name == "local" else Slurm(ACTIVE + min(faults, MOST_SPARES))


if __name__ == "__main__":
    sys.exit(main())

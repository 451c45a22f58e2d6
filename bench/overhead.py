"""What supervision costs: iteration time under the supervisor over that of a plain Megatron-core loop."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from common.contestants import Contestant, Plain, Supervised, Turns, stop, take_turn
from common.ending import until_stopped
from common.figures import worst_difference
from common.load import QUIET, busy_words, foreign_load, wait_quiet
from common.places import Local
from common.watching import BenchError

TRAIN_YAML = Path(__file__).with_name("overhead.yaml")
RANKS = 4
SAVE_INTERVAL = 20
#: Both compute the same sums, but not all in the same order; what that makes of a loss grows with each
#: iteration, so only the first ones are compared.
TOLERANCE = 1e-5
COMPARED = 20
#: With fewer undisturbed rounds than this, all rounds count.
FEWEST_QUIET = 4
AIM = 1.02


def quiet_rounds(*all_turns: Turns) -> list[int]:
    """Return the rounds in which no turn was disturbed by other work; all rounds where those are too few."""
    every = range(min(len(turns.periods) for turns in all_turns))
    whole = [number for number in every if all(turns.periods[number] for turns in all_turns)]
    quiet = [number for number in whole if all(turns.foreign[number] <= QUIET for turns in all_turns)]
    return quiet if len(quiet) >= FEWEST_QUIET else whole


def pooled(turns: Turns, rounds: Sequence[int]) -> list[float]:
    """Return every period of these rounds."""
    return [period for number in rounds for period in turns.periods[number]]


def fastest(periods: Sequence[float]) -> float:
    """Return the lowest decile: iterations that other work disturbed least."""
    return statistics.quantiles(periods, n=10)[0]


def check_layout(run: Supervised, layers: int) -> None:
    """Make sure that the supervisor trains in Megatron's own even layout.

    Raises
    ------
    BenchError
        When the planner found another one better.
    """
    replicas = run.run.of_type("plan_chosen")[0]["replicas"]
    found = [[stage["layers"] for stage in replica["stages"]] for replica in replicas]
    sizes = [[last - first + 1 for first, last in stages] for stages in found]
    ends = [[last - first for first, last in stages] for stages in found]  # where the end is not included
    even = [[layers // 2] * 2] * 2
    if even not in (sizes, ends):
        raise BenchError(f"the planner chose {found}, the plain loop's layout is two even stages, twice")


def measure(place: Local, rounds: int, seconds: float, dropout: float, patience: float) -> dict[str, Any]:
    """Run plain loop, supervised run and supervised run with checkpoints in turns; return the figures."""
    settings: dict[str, object] = {"model.hidden_dropout": dropout, "model.attention_dropout": dropout}
    supervised = Supervised("supervised", place, TRAIN_YAML, settings)
    supervised.run.wait_iteration(3)
    stop(supervised)
    check_layout(supervised, 8)
    saving = Supervised(
        "with checkpoints",
        place,
        TRAIN_YAML,
        {**settings, "name": "saving", "checkpoint.save_interval": SAVE_INTERVAL},
    )
    saving.run.wait_iteration(3)
    stop(saving)
    plain = Plain(supervised, RANKS)
    try:
        deadline = time.monotonic() + 120
        while len(plain.records()) < 3:
            if time.monotonic() > deadline:
                raise BenchError("the plain loop does not begin")
            time.sleep(0.1)
        stop(plain)
        contestants: list[Contestant] = [plain, supervised, saving]
        for number in range(rounds):
            # Every other round backwards, so that a drift of the machine favours nobody.
            for contestant in contestants if number % 2 == 0 else reversed(contestants):
                patience -= wait_quiet(max(0.0, patience))
                take_turn(contestant, seconds)
    finally:
        plain.close()
    saves = len(saving.run.of_type("checkpoint_saved"))
    return figures(plain.turns, supervised.turns, saving.turns, saves)


def figures(plain: Turns, supervised: Turns, saving: Turns, saves: int) -> dict[str, Any]:
    """Return what `--json` prints."""
    rounds = quiet_rounds(plain, supervised, saving)
    if len(rounds) < 2:
        raise BenchError("too few rounds had whole iterations")
    own, other = pooled(supervised, rounds), pooled(plain, rounds)
    ratios = [statistics.fmean(supervised.periods[r]) / statistics.fmean(plain.periods[r]) for r in rounds]
    low, _, high = statistics.quantiles(ratios, n=4)
    first = {iteration: loss for iteration, loss in supervised.losses.items() if iteration <= COMPARED}
    difference, compared = worst_difference(first, plain.losses)
    return {
        "ratio": statistics.median(own) / statistics.median(other),
        "ratio_of_rounds": statistics.median(ratios),
        "ratio_of_rounds_quartiles": [low, high],
        "ratio_of_fastest": fastest(own) / fastest(other),
        "supervised_seconds": statistics.median(own),
        "plain_seconds": statistics.median(other),
        "n": len(own),
        "n_plain": len(other),
        "rounds": len(rounds),
        "rounds_disturbed": len(plain.periods) - len(rounds),
        "foreign_cores": max(turns.foreign[r] for turns in (plain, supervised, saving) for r in rounds),
        "processor_seconds": supervised.cpu_seconds / supervised.iterations,
        "plain_processor_seconds": plain.cpu_seconds / plain.iterations,
        "ratio_with_checkpoint": statistics.fmean(pooled(saving, rounds)) / statistics.fmean(other),
        "checkpoints": saves,
        "checkpoint_interval": SAVE_INTERVAL,
        "worst_loss_difference": difference,
        "losses_compared": compared,
    }


def report(found: dict[str, Any]) -> list[str]:
    """Return the figures in words."""
    low, high = found["ratio_of_rounds_quartiles"]
    met = "met   " if found["ratio"] <= AIM else "MISSED"
    own, plain = found["processor_seconds"], found["plain_processor_seconds"]
    return [
        f"plain Megatron-core: {found['plain_seconds']:.4f} s an iteration, median of {found['n_plain']}",
        f"supervised:          {found['supervised_seconds']:.4f} s an iteration, median of {found['n']}",
        f"ratio of the medians: {found['ratio']:.4f}; of the fastest tenths: {found['ratio_of_fastest']:.4f}",
        f"ratio of the means in each of {found['rounds']} rounds: median {found['ratio_of_rounds']:.4f}, "
        f"quartiles {low:.4f}..{high:.4f}; other work used up to {found['foreign_cores']:.2f} cores, "
        f"{found['rounds_disturbed']} rounds were left out",
        f"processor time of all processes, agents included: {own:.4f} s over {plain:.4f} s an iteration: "
        f"{own / plain:.4f}",
        f"ratio of the means with a checkpoint every {found['checkpoint_interval']} iterations, "
        f"{found['checkpoints']} saved: {found['ratio_with_checkpoint']:.4f}",
        f"losses differ by at most {found['worst_loss_difference']:.1e}, "
        f"{found['losses_compared']} iterations compared",
        f"{met} at most {AIM}: {found['ratio']:.4f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each training (default 15)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a turn (default 4)")
    parser.add_argument("--dropout", type=float, default=0.0, help="with it, losses cannot be compared")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds, in all, to wait for other work to pause (60)"
    )
    parser.add_argument("--json", action="store_true", help="figures as JSON on stdout, the rest on stderr")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be at least 2")
    load = foreign_load()
    try:
        with until_stopped(), closing(Local()) as place:
            found = measure(place, options.rounds, options.seconds, options.dropout, options.patience)
    except BenchError as error:
        print(f"bench/overhead: {error}", file=sys.stderr)
        return 1
    found["load"] = load
    for line in [*report(found), *busy_words(load)]:
        print(line, file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(found, indent=2))
    if options.dropout == 0 and (found["worst_loss_difference"] > TOLERANCE or not found["losses_compared"]):
        print("bench/overhead: WRONG: the losses differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

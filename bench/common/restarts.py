"""The alternative to healing: the whole run dies, is submitted again and loads its newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from common.places import Place
from common.watching import Watched

#: Iterations between checkpoints: a restart loses half of them on average.
SAVE_INTERVAL = 10


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart.

    Attributes
    ----------
    to_commit
        Seconds from the death to the commit of the iteration after the last one committed before.
    up
        Seconds of these until the restarted run's ranks had loaded their state.
    redone
        Iterations committed before the death that had to be computed again.
    run
        The run that was restarted, up to the measured iteration and at least to the next checkpoint.
    """

    to_commit: float
    up: float
    redone: int
    run: Watched


def measure_restarts(
    place: Place, count: int, submit: Callable[[dict[str, object]], Watched]
) -> Iterator[Restart]:
    """Kill a run `count` times, at points spread evenly between two checkpoints, and submit it again.

    This favours the restart: the death is noticed at once, nobody looks at the job, no queue, and the
    dataset is built already.
    """
    settings: dict[str, object] = {"checkpoint.save_interval": SAVE_INTERVAL}
    run = submit(settings)
    run.wait_iteration(1)
    for number in range(count):
        # From the checkpoint after the next one on, so that it is surely this run's own and whole.
        newest = (run.iteration // SAVE_INTERVAL + 2) * SAVE_INTERVAL
        run.wait_for(f"checkpoint {newest}", partial(_saved, run, newest))
        run.wait_iteration(newest + int((number + 0.5) * SAVE_INTERVAL / count))
        died = place.kill(run)
        reached = run.iteration
        run = submit(settings)
        run.wait_iteration(reached + 1, seconds=300)
        first = next(record for record in run.metrics if record["iteration"] == reached + 1)
        up = run.of_type("transition_finished")[0]["time"] - died
        yield Restart(first["time"] - died, up, reached - int(run.metrics[0]["iteration"]) + 1, run)
    place.end(run)


def _saved(run: Watched, iteration: int) -> bool:
    """Whether the checkpoint of an iteration is whole."""
    return any(event["iteration"] == iteration for event in run.of_type("checkpoint_saved"))

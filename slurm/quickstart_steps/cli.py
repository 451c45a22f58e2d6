"""The command line of the quickstart; its help text is the manual."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from testcluster.errors import ClusterError

from quickstart_steps import cluster_life, setting_up, story
from quickstart_steps.environment import Environment
from quickstart_steps.errors import QuickstartError
from quickstart_steps.job import Job, to_stdout
from quickstart_steps.run_files import Record

REPOSITORY = Path(__file__).resolve().parent.parent.parent

_ABOUT = """\
From a fresh clone to a training that survives the loss of a node, on this machine alone.

  1. says what is missing, and installs it: Slurm and munge from the distribution (as root or with sudo;
     else it says what to ask your administrator for), the rest into .venv of this clone
  2. starts a Slurm of its own beside anything that is installed here: slurmctld and five nodes
  3. submits templates/gpt-tiny.yaml, a small GPT, with unicron-sbatch: four nodes train, one is a spare
  4. kills a node in the middle of it
  5. tells what happened and how long each step took, and takes its Slurm down again

What is there already is skipped, so it may be run again and again. On two cores it takes one to two minutes
once packages are downloaded. Nothing is changed outside this clone but the distribution's packages.
"""
_EXAMPLES = """\
examples:
  ./slurm/quickstart                    everything
  ./slurm/quickstart --list             what is missing here; installs nothing
  ./slurm/quickstart --lose 2           lose a second node, when no spare is left
  ./slurm/quickstart --keep             leave the cluster up, to look around:
      slurm/cluster exec --name quickstart -- squeue
      slurm/cluster down --name quickstart
  ./slurm/quickstart --setup-only       step 1 alone, as in CI

variables:
  UNICRON_PYTHON   the Python (3.11 to 3.13) that .venv is made with; default: python3.11 on PATH, else newer
  PIP_...          pip's own (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_PROXY, ...) are respected

exit codes: 0 done; 1 it failed, the reason is on stderr; 2 wrong usage; 130 interrupted, and cleared up
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slurm/quickstart",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print what is missing, and install nothing")
    what.add_argument("--setup-only", action="store_true", help="install what is missing, and stop there")
    what.add_argument("--keep", action="store_true", help="leave the cluster up at the end")
    parser.add_argument(
        "--docker", action="store_true", help="also install what test clusters in Docker need (apt)"
    )
    parser.add_argument(
        "--torch-index",
        default="",
        metavar="URL",
        help="index to take torch from (default: wherever pip is configured to look). Without a GPU, "
        "a CUDA build is refused",
    )
    parser.add_argument(
        "--lose", type=int, choices=(1, 2), default=1, help="nodes to kill, one after the other (default: 1)"
    )
    parser.add_argument(
        "--iterations", type=int, default=120, metavar="N", help="iterations to train (default: 120)"
    )
    parser.add_argument("--name", default="quickstart", help="the cluster's name (default: quickstart)")
    return parser


def _train(name: str, iterations: int, lose: int, *, keep: bool) -> None:
    to_stdout(f"\nstarting a Slurm with {cluster_life.NODES} nodes on this machine ...")
    with cluster_life.running(name, keep=keep, say=to_stdout) as cluster:
        job = Job(cluster, REPOSITORY, to_stdout)
        begun = time.monotonic()
        try:
            job.submit(iterations)
            # The first loss after a third of the run, so that there is a before and an after to look at.
            summary = job.run([iterations * (part + 1) // (lose + 2) for part in range(lose)])
            ended = job.wait_for_slurm()
        except (QuickstartError, ClusterError) as error:
            kept = cluster_life.save_logs(job.folder, cluster)
            raise QuickstartError(
                str(error), hint=f"Logs of the run and of Slurm were kept in {kept}"
            ) from None
        _tell(job, summary, ended, time.monotonic() - begun)
        if keep:
            to_stdout(f"\nThe cluster stays up; the run folder is {job.folder}")
            to_stdout(f"  look around   slurm/cluster exec --name {name} -- squeue")
            to_stdout(f"  take it down  slurm/cluster down --name {name}")


def _tell(job: Job, summary: Record, ended: str, seconds: float) -> None:
    for kill in job.kills:
        found = story.recovery(job.events.all, kill)
        if found is None:
            raise QuickstartError(
                f"the journal does not tell of the recovery from the loss of {kill.node}",
                where=str(job.folder),
            )
        to_stdout(f"\nWhat happened to {kill.node}")
        for line in story.what_happened(found):
            to_stdout(f"  {line}")
        to_stdout("How long each step took")
        for line in story.table(story.how_long(found)):
            to_stdout(f"  {line}")
    if not story.is_unbroken(job.metrics.all):
        raise QuickstartError("iterations are missing or were redone in metrics.jsonl", where=str(job.folder))
    last = job.metrics.all[-1]
    to_stdout("\nThe result")
    to_stdout(
        f"  Iterations 1 to {last['iteration']}, each committed once; the loss fell from "
        f"{job.metrics.all[0]['loss']:.3f} to {last['loss']:.3f}."
    )
    to_stdout(
        f"  Slurm job {job.id}: {ended}; {seconds:.0f} s from submission to end, "
        f"{summary['goodput']:.0%} of its time in iterations (a short run: starting up is most of the rest)."
    )


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def main(argv: Sequence[str]) -> int:
    """Run the quickstart; return its exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.iterations < 10 * (options.lose + 1):
        parser.error(f"--iterations: at least {10 * (options.lose + 1)}, to lose {options.lose} on the way")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        environment = Environment(REPOSITORY, options.torch_index)
        needs = setting_up.find_needs(environment, docker=options.docker)
        setting_up.tell(environment, needs, to_stdout)
        if options.list:
            return 0
        setting_up.meet(environment, needs)
        if not options.setup_only:
            _train(options.name, options.iterations, options.lose, keep=options.keep)
    except (QuickstartError, ClusterError) as error:
        print(f"slurm/quickstart: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupted:
        print("slurm/quickstart: interrupted", file=sys.stderr)
        return 128 + int(interrupted.args[0] if interrupted.args else signal.SIGINT)
    return 0

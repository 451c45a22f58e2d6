"""`unicron drill run` against a job of a test cluster: what it printed, and what the journal shows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .job import ENVIRONMENT, STATUS, Job
from .run import Event

#: Longest wait of the command for one drill's outcome, in seconds.
LIMIT = 90
#: Iterations between two drills: the run is steady again, and knows its pace.
SETTLE = 10


@dataclass(frozen=True, slots=True)
class Drilled:
    """One drill.

    Attributes
    ----------
    code, words
        How the command ended, and what it wrote for people.
    told
        Its JSON object; empty where there is none.
    since
        Every event from when it was ordered until it was over.
    """

    code: int
    words: str
    told: dict[str, Any]
    since: list[Event]

    def events(self, kind: str) -> list[Event]:
        """Return the events of a type."""
        return [event for event in self.since if event["type"] == kind]


def drill(job: Job, name: str, *options: str) -> Drilled:
    """Run a drill as the job's owner, from the login node."""
    words = [STATUS, *_words(job, name, options)]
    return _run(job, lambda: job.cluster.exec(words, check=False, timeout=2 * LIMIT + 60, env=ENVIRONMENT))


def drill_from_here(job: Job, name: str, *options: str) -> Drilled:
    """Run a drill that needs this machine's power over the cluster, and nothing of the job's keys."""
    words = [STATUS, *_words(job, name, options)]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * LIMIT + 60,
            stdin=subprocess.DEVNULL,
        )

    return _run(job, run)


def _words(job: Job, name: str, options: Sequence[str]) -> list[str]:
    return ["drill", "run", name, "--yes", "--json", f"--wait={LIMIT}", *options, f"{job.folder}/"]


def _run(job: Job, command: Any) -> Drilled:
    before = len(job.events())
    done: subprocess.CompletedProcess[str] = command()
    told = json.loads(done.stdout) if done.stdout.strip() else {}
    return Drilled(done.returncode, done.stderr, told, job.events()[before:])


def drill_all(job: Job, plan: Sequence[tuple[str, ...]]) -> dict[str, Drilled]:
    """Run one drill after the other; one that fails keeps nobody from the next, the end of the run does."""
    found: dict[str, Drilled] = {}
    for name, *options in plan:
        if job.events("job_finished"):
            found[name] = Drilled(1, f"not made: the run had ended\n{job.story()}", {}, [])
            continue
        job.wait_iteration(job.iteration() + SETTLE)
        found[name] = drill(job, name, *options)
    return found


def assert_passed(drilled: Drilled) -> None:
    """Check that the culprit was named, nobody else was harmed, and training went on (or ended rightly)."""
    faults = [
        {k: e.get(k) for k in ("node", "rank", "error", "method")} for e in drilled.events("fault_detected")
    ]
    story = f"{drilled.words}\n{json.dumps(drilled.told, indent=1)}\n{faults}"
    assert drilled.told, story
    assert drilled.told["wrong"] == [], story
    assert drilled.code == 0, story

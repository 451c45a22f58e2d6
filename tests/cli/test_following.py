"""`unicron events --follow`: to the journal's end, or to the job's where the journal has none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unicron_hpc.cli import following
from unicron_hpc.cli.following import NO_END, QUIET, SETTLES
from unicron_hpc.cli.standing import Standing
from unicron_hpc.report.journal import EVENTS, METRICS

RUNS = Standing("RUNNING")
KILLED = Standing("CANCELLED", True, "Slurm has job 7 as CANCELLED")


ENDING = Standing("COMPLETING", words="Slurm has job 7 as COMPLETING")
QUEUED = Standing("PENDING", words="Slurm has job 7 as PENDING (BeginTime): it waits")


def event(kind: str, **more: Any) -> dict[str, Any]:
    if kind == "job_finished":
        more = {"state": "finished", **more}
    return {"time": 1.0, "type": kind, "epoch": 1, **more}


class Scene:
    """A run folder, a clock that only waiting moves, and somebody to ask."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.told: list[str] = []
        self.said: list[str] = []
        self.asked: list[float] = []
        self.answers: list[Standing] = []
        self.later: dict[float, Callable[[], None]] = {}
        self.append(event("job_started"))

    def append(self, *events: dict[str, Any], name: str = EVENTS) -> None:
        with (self.folder / name).open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in events)

    def follow(self) -> int:
        return following.follow(
            self.folder,
            lambda one: self.told.append(one["type"]),
            self.said.append,
            ask=lambda folder: self._ask(folder),
            ask_ended=lambda folder: self._ask(folder),
            wait=self._wait,
            clock=lambda: self.now,
        )

    def _ask(self, folder: Path) -> Standing:
        self.asked.append(self.now)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        for when in [when for when in self.later if when <= self.now]:
            self.later.pop(when)()
        assert self.now < 3600, "followed for an hour"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


class TestFollowing:
    def test_ends_with_the_journal(self, scene: Scene) -> None:
        scene.later[3.0] = lambda: scene.append(event("plans_ready"), event("job_finished"))
        assert scene.follow() == 0
        assert scene.told == ["job_started", "plans_ready", "job_finished"]
        assert (scene.asked, scene.said) == ([], [])

    def test_waits_for_the_rest_of_a_line(self, scene: Scene) -> None:
        line = json.dumps(event("plans_ready"))
        path = scene.folder / EVENTS
        path.write_text(path.read_text() + line[:9])
        scene.later[1.0] = lambda: path.write_text(path.read_text() + line[9:] + "\n")
        scene.later[2.0] = lambda: scene.append(event("job_finished"))
        scene.follow()
        assert scene.told == ["job_started", "plans_ready", "job_finished"]

    def test_goes_on_after_a_requeue(self, scene: Scene) -> None:
        scene.append(event("job_finished"), event("job_started"))
        scene.later[1.0] = lambda: scene.append(event("job_finished"))
        assert scene.follow() == 0
        assert len(scene.told) == 4

    def test_goes_on_when_slurm_has_put_the_cancelled_job_back_into_its_queue(self, scene: Scene) -> None:
        scene.append(event("job_finished", state="cancelled"))
        scene.answers = [RUNS, ENDING, QUEUED, RUNS]
        scene.later[25.0] = lambda: scene.append(event("job_started"))
        scene.later[40.0] = lambda: scene.append(event("job_finished"))
        assert scene.follow() == 0
        assert scene.said == [f"{QUEUED.words}; following on"]
        assert scene.told[-2:] == ["job_started", "job_finished"]

    def test_ends_with_a_cancelled_job_that_is_not_queued_again(self, scene: Scene) -> None:
        scene.append(event("job_finished", state="cancelled"))
        for answers in ([KILLED], [RUNS, ENDING, KILLED], [Standing("", words="no answer within 10 s")]):
            scene.answers = answers
            assert scene.follow() == 0
        assert scene.said == []
        assert len(scene.asked) == 5

    def test_does_not_wait_for_ever_for_a_job_that_does_not_go(self, scene: Scene) -> None:
        scene.append(event("job_finished", state="failed"))
        scene.answers = [ENDING]
        assert scene.follow() == 0
        assert scene.now > SETTLES

    def test_goes_on_with_a_job_that_started_again_while_slurm_was_asked(self, scene: Scene) -> None:
        scene.append(event("job_finished", state="cancelled"))
        scene.answers = [ENDING, RUNS]
        scene.later[1.0] = lambda: scene.append(event("job_started"))
        scene.later[9.0 + SETTLES] = lambda: scene.append(event("job_finished"))
        assert scene.follow() == 0
        assert scene.told[-2:] == ["job_started", "job_finished"]

    def test_ends_when_the_queued_job_is_cancelled_before_it_starts_again(self, scene: Scene) -> None:
        scene.append(event("job_finished", state="cancelled"))
        scene.answers = [QUEUED, QUEUED, KILLED]
        assert scene.follow() == 0
        assert scene.said == [f"{QUEUED.words}; following on", KILLED.words]

    def test_ends_when_the_job_is_over_without_an_end(self, scene: Scene) -> None:
        scene.answers = [RUNS, RUNS, KILLED]
        assert scene.follow() == NO_END
        assert scene.said == [
            "Slurm has job 7 as CANCELLED. The journal has no end: nobody was left to write it"
        ]

    def test_reads_what_was_written_while_it_asked(self, scene: Scene) -> None:
        scene.answers = [KILLED]
        ask = scene._ask

        def meanwhile(folder: Path) -> Standing:
            scene.append(event("job_finished"))
            return ask(folder)

        scene._ask = meanwhile  # type: ignore[method-assign]
        assert scene.follow() == 0
        assert scene.said == []

    def test_asks_at_once_about_a_journal_that_has_been_quiet_for_long(self, scene: Scene) -> None:
        os.utime(scene.folder / EVENTS, (1.0, 1.0))
        scene.answers = [KILLED]
        assert scene.follow() == NO_END
        assert scene.asked == [0.0]

    def test_asks_nobody_while_iterations_are_committed(self, scene: Scene) -> None:
        for second in range(1, 60):
            scene.later[float(second)] = lambda: scene.append({}, name=METRICS)
        scene.answers = [KILLED]
        scene.follow()
        assert min(scene.asked) >= 59 + QUIET

    def test_asks_ever_more_seldom_but_at_least_once_a_minute(self, scene: Scene) -> None:
        scene.answers = [*[RUNS] * 8, KILLED]
        scene.follow()
        gaps = [after - before for before, after in zip(scene.asked, scene.asked[1:], strict=False)]
        assert gaps == sorted(gaps)
        assert (gaps[0], gaps[-1]) == (QUIET, 60.0)

    def test_goes_on_while_slurm_is_silent_and_says_so_once(self, scene: Scene) -> None:
        scene.answers = [
            Standing("", words="no answer within 10 s"),
            Standing("", words="connection refused"),
            RUNS,
            Standing("", words="connection refused"),
            KILLED,
        ]
        assert scene.follow() == NO_END
        assert scene.said[:-1] == ["no answer within 10 s; following on"]

    def test_says_once_that_the_job_waits_again(self, scene: Scene) -> None:
        waits = Standing("PENDING", words="Slurm has job 7 as PENDING (BeginTime)")
        scene.answers = [waits, waits, KILLED]
        scene.follow()
        assert scene.said[:-1] == ["Slurm has job 7 as PENDING (BeginTime); following on"]


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A run folder whose job is not over, as far as this machine can tell."""
    folder = tmp_path / "gpt-tiny-local-1-2"
    (folder / "agents").mkdir(parents=True)
    (folder / "train.yaml").touch()
    (folder / "allocation.json").write_text('{"job_id":"local-1-2","nodes":["n1"],"active":1,"slots":1}')
    (folder / "agents" / "n1.json").write_text('{"pid": 1, "host": "elsewhere"}')
    started = event("job_started", job_id="local-1-2", nodes=["n1"], active=1, train_iters={"a": 9})
    (folder / EVENTS).write_text(json.dumps(started) + "\n")
    return folder


def start(folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "unicron_hpc.cli.main", "events", "--follow", "--json", str(folder)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_control_c_ends_it_quietly(running: Path) -> None:
    process = start(running)
    assert process.stdout is not None
    assert "job_started" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


def test_a_reader_that_has_gone_ends_it_quietly_although_nothing_is_left_to_write(running: Path) -> None:
    process = start(running)
    assert process.stdout is not None
    assert process.stderr is not None
    assert "job_started" in process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141

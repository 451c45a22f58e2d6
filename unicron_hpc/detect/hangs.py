"""Whether one rank hangs: judged from outside, from its phase page and the state of its thread.

The clock that counts runs only while the thread could have run: time in which it was ready and waited for a
processor is taken out, and so is the time in which the one who looks did not run himself. A rank that waits
for others is their victim. One that is stuck in its own work, or stopped anywhere, is named when that takes
longer than the factor (3, as in Unicron) times what an iteration, or this phase, usually takes. In a
transition, where nothing is usual, a single step may take twice that factor times what the whole of it took
others on this node.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from unicron_hpc.detect.phases import (
    COMPUTE,
    OWN,
    SHARED,
    TRANSITION,
    TRANSITION_WAITING,
    UNLIMITED,
    WAITING,
    WorkPhase,
)
from unicron_hpc.detect.severity import Blame, Finding, Severity
from unicron_hpc.detect.statistics import Series, Trend

RANK_STOPPED = Finding("rank stopped", Severity.SEV2)
RANK_HANG = Finding("rank hang", Severity.SEV2)
RANK_TRACED = Finding("rank is being traced", Severity.INFO, Blame.NOBODY)
PHASE_SLOWER = Finding("slower than usual", Severity.INFO, Blame.NOBODY)

#: Seconds on top of the factor: what a look, a timer and a page fault may cost.
SLACK = 0.2
#: Longest step of the clock, in seconds: who looks later than this did not run himself.
LONGEST_STEP = 0.25
#: Iterations of an epoch before their times are a measure.
ENOUGH = 3
#: Iterations whose own work is told: few, since who compares looks for a whole window of time.
LATEST = 16
#: Times the floor that a first iteration, a slow disk or a data loader may take.
PATIENCE = 6
#: Least time that an answer may take, in seconds of the clock that counts.
ANSWER = 0.3
_WAITS = WAITING | TRANSITION_WAITING


class Stuck(enum.StrEnum):
    """What keeps a rank."""

    STOPPED = "stopped by a signal"
    LOOPING = "busy on a processor without progress"
    SLEEPING = "asleep in its own work"
    BLOCKED = "blocked in the kernel (file system or device)"
    HELD = "none of its threads gets the interpreter's lock"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a rank.

    Attributes
    ----------
    time
        Monotonic seconds of the look.
    count, phase, since
        Its mark, see `runtime.phase_page`.
    state
        Letter of /proc/PID/stat for the thread that works; empty if it was not looked up.
    cpu, delay
        Seconds that this thread had on a processor, and was ready but waited for one, since it began.
    others_delay
        Longest such wait of any thread of the process since the last look, while an answer is waited for.
    """

    time: float
    count: int
    phase: WorkPhase
    since: float
    state: str = ""
    cpu: float = 0.0
    delay: float = 0.0
    others_delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A rank that took too long.

    Attributes
    ----------
    stuck, phase
        How, and in what.
    still, limit, usual
        Seconds that count, how many there may be, and what an iteration usually takes (0 if unknown).
    sure
        It need not be asked whether its stack waits for a peer.
    """

    stuck: Stuck
    phase: WorkPhase
    still: float
    limit: float
    usual: float
    sure: bool


class HangWatch:
    """Watches one process.

    Parameters
    ----------
    factor
        Times the usual duration that is a fault.
    floor
        `PATIENCE` times this may pass where there is no measure (a first iteration) or a disk is waited for.
    transition
        Seconds that a step of a transition may take where there is no measure, if that is longer.

    Attributes
    ----------
    transition_work
        Longest time that the own work of a transition can take it, by what others took; None if unknown.
    """

    def __init__(self, factor: float, floor: float, transition: float = 0.0) -> None:
        self._factor = factor
        self._floor = floor
        self._transition = transition
        self.transition_work: float | None = None
        self._iteration = Series()
        self._before = 0.0
        self._phases = {phase: Series() for phase in COMPUTE}
        self._trends = {phase: Trend() for phase in COMPUTE}
        self._compute = Series(LATEST)
        self._epoch = 0
        self._last: Sample | None = None
        self._still = 0.0
        self._waits = False  # its stack has shown that it waits for a peer, whatever the mark says
        self._compiles = False
        self._asked = False
        self._answer_within = ANSWER
        self._next_question = 0.0
        self._unanswered = 0.0
        self._accused = 0

    # ------------------------------------------------------------ statistics

    def finished(self, epoch: int, seconds: float, phases: dict[WorkPhase, float]) -> None:
        """The rank has finished an iteration: its length and what was spent in which phase."""
        if epoch != self._epoch:
            self._begin_epoch(epoch)
            return  # the first of an epoch: lazy parts start, caches fill
        self._iteration.add(seconds)
        for phase, series in self._phases.items():
            if phase in phases:
                series.add(phases[phase])
                self._trends[phase].add(phases[phase], seconds)
        self._compute.add(sum(phases.get(phase, 0.0) for phase in SHARED))

    def _begin_epoch(self, epoch: int) -> None:
        self._before = self._iteration.usual() or self._before
        self._epoch = epoch
        self._iteration.clear()
        self._compute.clear()
        for phase in COMPUTE:
            self._phases[phase].clear()
            self._trends[phase].clear()

    @property
    def usual(self) -> float:
        """Seconds of a usual iteration; 0 while unknown."""
        return self._iteration.usual() or self._before

    def compute(self) -> tuple[float, int]:
        """Seconds of its share of the work in an iteration, of the latest, and how many these are."""
        return self._compute.level() or 0.0, len(self._compute)

    def slower(self, factor: float) -> dict[WorkPhase, float]:
        """Phases that have begun to take `factor` times as long as before, and how many times."""
        found = {phase: trend.slower(factor) for phase, trend in self._trends.items()}
        return {phase: times for phase, times in found.items() if times is not None}

    # ------------------------------------------------------------ judgement

    @property
    def at_work(self) -> bool:
        """Whether it was busy with something of its own at the last look."""
        last = self._last
        return last is not None and not self._waits and last.phase in OWN | {WorkPhase.CHECKPOINT}

    def look(self, sample: Sample) -> Suspicion | None:
        """Take one look into account.

        Returns
        -------
        Suspicion or None
            Once for each time that it is stuck.
        """
        last, self._last = self._last, sample
        if last is None or sample.count != last.count:
            self._still = min(max(sample.time - sample.since, 0.0), LONGEST_STEP)
            self._waits, self._compiles, self._asked, self._next_question = False, False, False, 0.0
            return None
        step = _counted(last, sample)
        self._still += step
        if self._asked:
            self._unanswered += max(0.0, step - sample.others_delay)
        if self._accused == sample.count:
            return None
        stuck = self._stuck(sample)
        if stuck is not Stuck.STOPPED and sample.phase is WorkPhase.IDLE:
            return None
        limit = self.limit(sample.phase, stuck)
        if stuck is None or limit is None or self._still < limit:
            return None
        self._accused = sample.count
        sure = stuck in (Stuck.STOPPED, Stuck.HELD)
        return Suspicion(stuck, sample.phase, self._still, limit, self.usual, sure)

    def waits_for_a_peer(self) -> None:
        """Its stack has shown that it waits for another rank in the midst of its own work: it is a victim."""
        self._waits = True
        self._accused = 0

    def compiles(self) -> None:
        """Its stack has shown that it compiles something: until it moves, that may take any time."""
        self._compiles = True
        self._accused = 0

    def question(self) -> int | None:
        """A number for the rank to repeat, if it has waited for long: does its interpreter run at all?"""
        last = self._last
        if last is None or self._asked or not (self._waits or last.phase in _WAITS):
            return None
        half = (self.limit(last.phase, Stuck.HELD) or 0.0) / 2
        if self._still < max(half, self._next_question):
            return None
        self._asked, self._unanswered, self._next_question = True, 0.0, self._still + half
        self._answer_within = max(ANSWER, half)
        return last.count

    @property
    def asking(self) -> bool:
        """Whether an answer is waited for."""
        return self._asked

    def answered(self, number: int) -> None:
        """The rank repeats the number of a question."""
        if self._last is not None and number == self._last.count:
            self._asked = False

    def limit(self, phase: WorkPhase, stuck: Stuck | None) -> float | None:
        """Seconds that a phase may take; None where there is no limit.

        Parameters
        ----------
        stuck
            How the rank looks.
        """
        if stuck is not Stuck.STOPPED and (self._compiles or phase in UNLIMITED):
            return None  # as long as the compiler or the disk takes
        usual = max(self.usual, (self._phases[phase].usual() or 0.0) if phase in self._phases else 0.0)
        if stuck is not Stuck.STOPPED and phase in TRANSITION:
            unknown = max(PATIENCE * self._floor, self._transition)
            if stuck is Stuck.BLOCKED or self.transition_work is None:
                return unknown
            return max(self._floor, 2 * self._factor * max(usual, self.transition_work))
        if len(self._iteration) < ENOUGH:
            known = max(self._floor, 2 * self._factor * usual)
            stopped = stuck is Stuck.STOPPED  # however long its work may take, it does none
            return known if stopped or self._before > 0 else max(known, PATIENCE * self._floor)
        limit = self._factor * usual + SLACK
        if stuck is Stuck.BLOCKED or (phase is WorkPhase.DATA and stuck is not Stuck.STOPPED):
            # A slow disk, or a new part of the data that is opened and indexed.
            return max(limit, PATIENCE * self._floor)
        return limit

    def _stuck(self, sample: Sample) -> Stuck | None:
        if sample.state == "T":
            return Stuck.STOPPED
        if sample.state in ("t", "Z", "X", ""):
            return None  # a debugger has it, or it is dead, which others see
        if self._waits or sample.phase in _WAITS:
            unheard = self._asked and self._unanswered >= self._answer_within
            return Stuck.HELD if unheard and sample.state != "D" else None
        return {"R": Stuck.LOOPING, "D": Stuck.BLOCKED}.get(sample.state, Stuck.SLEEPING)


def _counted(last: Sample, now: Sample) -> float:
    """Seconds between two looks in which the thread could have gone on."""
    step = min(max(now.time - last.time, 0.0), LONGEST_STEP)
    if now.state in ("T", "t"):
        return step
    if now.state == "R":
        # The kernel adds a wait to `delay` when it is over: what a runnable thread did not run, it waited.
        return min(step, max(0.0, now.cpu - last.cpu))
    return max(0.0, step - max(0.0, now.delay - last.delay))

"""The phase page, written by real processes in every bad state and read from outside."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.supervisor.events import until
from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.runtime.phase_page import PAGE_BYTES, PhaseMarks, PhasePage


class Writer:
    """A child that does something with its page until it is killed."""

    def __init__(self, work: Callable[[PhaseMarks], None]) -> None:
        self.page = PhasePage()
        self.pid = os.fork()
        if self.pid == 0:
            faulthandler.register(signal.SIGUSR2, file=self.page.descriptor)
            work(PhaseMarks(os.dup(self.page.descriptor)))
            os._exit(0)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def writer() -> Iterator[Callable[[Callable[[PhaseMarks], None]], Writer]]:
    children: list[Writer] = []

    def begin(work: Callable[[PhaseMarks], None]) -> Writer:
        children.append(Writer(work))
        return children[-1]

    yield begin
    for child in children:
        child.end()


Begin = Callable[[Callable[[PhaseMarks], None]], Writer]


def race(marks: PhaseMarks) -> None:
    """Every field follows from the number of the iteration."""
    for iteration in range(1, 1 << 40):
        marks.begin_iteration(iteration)
        marks.micro_batch(iteration, WorkPhase.FORWARD)
        marks.end_iteration()


def test_a_reader_never_sees_half_a_mark_of_a_writer_at_full_speed(writer: Begin) -> None:
    child = writer(race)
    until(lambda: child.page.pace() is not None)
    before = 0
    for _ in range(3000):
        mark, pace = child.page.mark(), child.page.pace()
        assert mark is not None
        assert pace is not None
        assert mark.count >= before
        before = mark.count
        # begin (the first also takes), micro-batch, end: three marks an iteration.
        assert mark.iteration == (mark.count - 1) // 3 + 1
        assert mark.micro_batch in (mark.iteration, mark.iteration - 1)
        assert pace.iteration == pace.count
    assert before > 100


def test_a_killed_writer_leaves_its_last_word(writer: Begin) -> None:
    for _ in range(5):
        child = writer(race)
        until(lambda child=child: child.page.pace() is not None)
        os.kill(child.pid, signal.SIGKILL)
        until(lambda child=child: os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT) is not None)
        mark = child.page.mark()
        assert mark is not None
        assert mark == child.page.mark()


def test_half_a_record_is_passed_over_for_the_one_before() -> None:
    page = PhasePage()
    memory = mmap.mmap(page.descriptor, PAGE_BYTES)
    marks = PhaseMarks(page.descriptor)
    assert page.mark() is None
    assert page.pace() is None
    marks.take(WorkPhase.DATA, epoch=3)
    marks.enter(WorkPhase.FORWARD)
    for at in (0, 8, 60):  # anywhere in the newest record, which lies in the first slot
        memory[at] ^= 0xFF
        mark = page.mark()
        assert mark is not None
        assert (mark.phase, mark.epoch) == (WorkPhase.DATA, 3)
        memory[at] ^= 0xFF
    mark = page.mark()
    assert mark is not None
    assert mark.phase is WorkPhase.FORWARD


def test_a_stopped_writer_and_one_that_holds_the_interpreters_lock_can_be_read(writer: Begin) -> None:
    def hold(marks: PhaseMarks) -> None:
        marks.take(WorkPhase.BACKWARD, epoch=5)
        ctypes.PyDLL(None).pause()  # a C call that does not let go of the lock

    held = writer(hold)
    stopped = writer(race)
    until(lambda: held.page.mark() is not None and stopped.page.mark() is not None)
    os.kill(stopped.pid, signal.SIGSTOP)
    os.waitpid(stopped.pid, os.WUNTRACED)
    one = stopped.page.mark()
    assert one is not None
    assert one == stopped.page.mark()
    mark = held.page.mark()
    assert mark is not None
    assert (mark.phase, mark.epoch, mark.thread) == (WorkPhase.BACKWARD, 5, held.pid)


def test_stacks_go_behind_the_page_even_if_the_lock_is_held(writer: Begin) -> None:
    def hold(marks: PhaseMarks) -> None:
        marks.take(WorkPhase.FORWARD, epoch=1)
        while True:
            ctypes.PyDLL(None).pause()

    child = writer(hold)
    until(lambda: child.page.mark() is not None)
    for _ in range(2):
        child.page.expect_dump()
        assert child.page.dump() == ""
        os.kill(child.pid, signal.SIGUSR2)
        until(lambda: "in hold" in child.page.dump())
        assert child.page.dump().count("in hold") == 1
        mark = child.page.mark()
        assert mark is not None
        assert f"0x{mark.ident:016x}" in child.page.dump()
        assert child.page.dump_bytes() == len(child.page.dump().encode())


def test_a_thread_that_was_left_behind_does_not_speak_for_the_rank() -> None:
    page = PhasePage()
    marks = PhaseMarks(page.descriptor)
    ready, go = threading.Event(), threading.Event()

    def left_behind() -> None:
        marks.begin_iteration(7)
        ready.set()
        go.wait()
        marks.enter(WorkPhase.OPTIMIZER)
        marks.end_iteration()

    thread = threading.Thread(target=left_behind)
    thread.start()
    ready.wait()
    marks.take(WorkPhase.GROUPS, epoch=2)
    go.set()
    thread.join()
    mark = page.mark()
    assert mark is not None
    assert (mark.phase, mark.epoch) == (WorkPhase.GROUPS, 2)
    assert mark.thread == threading.get_native_id()
    assert page.pace() is None


def test_an_iterations_time_is_shared_out_over_its_phases() -> None:
    page = PhasePage()
    marks = PhaseMarks(page.descriptor)
    marks.take(WorkPhase.IDLE, epoch=4)
    time.sleep(0.02)
    marks.begin_iteration(11)
    marks.micro_batch(0, WorkPhase.FORWARD)
    time.sleep(0.01)
    marks.enter(WorkPhase.EXCHANGE)
    time.sleep(0.005)
    marks.end_iteration()
    pace = page.pace()
    assert pace is not None
    assert (pace.count, pace.epoch, pace.iteration) == (1, 4, 11)
    assert pace.phases[WorkPhase.IDLE] == 0
    assert pace.phases[WorkPhase.FORWARD] >= 0.01
    assert pace.phases[WorkPhase.EXCHANGE] >= 0.005
    assert abs(sum(pace.phases) - pace.seconds) < 1e-6


def test_without_an_agent_marks_go_nowhere() -> None:
    marks = PhaseMarks()
    marks.take(WorkPhase.FORWARD, epoch=1)
    marks.begin_iteration(1)
    marks.end_iteration()


def test_a_page_that_nobody_has_any_more_is_closed() -> None:
    page = PhasePage()
    descriptor = page.descriptor
    os.fstat(descriptor)
    del page
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)

"""What a rank says of an exception: class and text, traceback, where it was, which collective waited."""

from __future__ import annotations

import pytest

from unicron_hpc.detect.phases import WorkPhase
from unicron_hpc.runtime.fault_report import collective_of, fault_report, named
from unicron_hpc.runtime.phase_page import PhaseMarks


def all_reduce(numbers: list[float]) -> None:
    """Stands for torch's: it is known by its name."""
    raise RuntimeError("Connection closed by peer [10.0.0.1]:4567")


def sum_gradients() -> None:
    all_reduce([1.0])


def compute() -> None:
    raise ValueError("loss is nan\nat step 120")


def raised(call: object) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (whatever it is)
        call()  # type: ignore[operator]
    return caught.value


def marks_in(phase: WorkPhase) -> PhaseMarks:
    marks = PhaseMarks()
    marks.begin_iteration(12)
    marks.micro_batch(3, phase)
    return marks


def test_the_report_says_what_was_done_and_where_it_broke() -> None:
    report = fault_report(4, raised(compute), marks_in(WorkPhase.FORWARD))
    assert (report.epoch, report.error) == (4, "ValueError: loss is nan")
    assert report.place == "in forward of iteration 12, micro-batch 3"
    assert "in compute" in report.traceback
    assert report.traceback.endswith("at step 120\n")


def test_the_collective_that_waited_is_named_with_who_called_it() -> None:
    report = fault_report(4, raised(sum_gradients), marks_in(WorkPhase.ALL_REDUCE))
    caller, _, waiting = report.collective.partition(" > ")
    assert caller.startswith("runtime/test_fault_report.py:")
    assert caller.endswith(" raised")
    assert waiting.endswith(" sum_gradients")
    assert "in the collective runtime/test_fault_report.py" in report.place


def test_an_exception_made_of_another_one_keeps_its_collective() -> None:
    def lost() -> None:
        try:
            sum_gradients()
        except RuntimeError as error:
            raise OSError("a connection of epoch 4 broke") from error

    assert "sum_gradients" in collective_of(raised(lost))


def test_an_exception_of_the_program_itself_has_none() -> None:
    assert collective_of(raised(compute)) == ""


def test_an_exception_in_a_circle_of_causes_is_reported_too() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert collective_of(first) == ""


def test_an_exception_without_text_has_its_class() -> None:
    assert named(AssertionError()) == "AssertionError: "

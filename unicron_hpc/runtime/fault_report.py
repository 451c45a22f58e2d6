"""What a rank says of an exception before it goes on: where it was, in what, and which collective waited."""

from __future__ import annotations

import traceback

from unicron_hpc.detect.stacks import Frame, waits_for_peer
from unicron_hpc.runtime.phase_page import PhaseMarks
from unicron_hpc.supervisor.rank_messages import RankFault


def fault_report(epoch: int, error: BaseException, marks: PhaseMarks) -> RankFault:
    """The message about an exception.

    Parameters
    ----------
    epoch
        In which it was met; 0 before the first.
    error
        The exception, with its traceback and causes.
    marks
        What this rank was doing, which nothing has changed since.
    """
    doing = marks.doing
    return RankFault(
        epoch,
        named(error),
        "".join(traceback.format_exception(error)),
        iteration=doing.iteration,
        micro_batch=doing.micro_batch,
        phase=doing.phase.title,
        collective=collective_of(error),
    )


def named(error: BaseException) -> str:
    """Class and first line of the text."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def collective_of(error: BaseException) -> str:
    """The calls that led to the collective in which an exception arose, the innermost last; '' for none.

    Parameters
    ----------
    error
        The exception. Where it was raised from another one, that one is looked at first: it came from inside.
    """
    inner: BaseException | None = error
    chain: list[BaseException] = []
    while inner is not None and inner not in chain:
        chain.append(inner)
        inner = inner.__cause__ or inner.__context__
    for one in reversed(chain):
        frames = traceback.extract_tb(one.__traceback__)
        waiting = [
            place
            for place, frame in enumerate(frames)
            if waits_for_peer(Frame(frame.filename, frame.lineno or 0, frame.name), frame.line or "")
        ]
        if waiting:
            # The caller says which sum or exchange it was, the waiting call itself only how.
            shown = frames[max(0, waiting[0] - 1) : waiting[-1] + 1]
            return " > ".join(f"{_file(f.filename)}:{f.lineno} {f.name}" for f in shown)
    return ""


def _file(path: str) -> str:
    return "/".join(path.split("/")[-2:])

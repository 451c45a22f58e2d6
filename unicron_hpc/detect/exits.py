"""Process supervision: what the end of a rank process means."""

from __future__ import annotations

import signal
from collections.abc import Callable

import msgspec

from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.last_words import error_lines
from unicron_hpc.detect.severity import Blame, Finding, Severity

#: Signals by which a process ends because of its own doing.
_OWN_FAULT = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
#: Limits of the process that it would meet again (setrlimit(2)).
_LIMITS = {signal.SIGXCPU: "processor time limit", signal.SIGXFSZ: "file size limit"}
#: Our own exit codes: a rank that lost its agent, and one whose outermost code failed.
_AGENT_GONE, _INTERNAL = 75, 70

#: The error of a process that got SIGKILL.
KILLED = "killed (SIGKILL)"
#: The same program would be killed again, on any node: no spare helps.
HOST_MEMORY = Finding("host out of memory", Severity.PROGRAM, Blame.PROGRAM)
#: What to do about it.
HOST_MEMORY_ADVICE = (
    "Ask for more memory (slurm.mem), or have fewer ranks or data loaders on a node: this program would be"
    " killed again."
)


def explain_exit(
    status: int | None,
    *,
    words: str = "",
    memory: str = "",
    explain: Callable[[str], Finding] = explain_exception,
) -> Finding:
    """Finding for a rank that ended before its time.

    Parameters
    ----------
    status
        Exit code, or minus the signal's number; None when nobody could tell.
    words
        What it wrote since its last report: an end of its own doing is named by the error in there. One
        that came from outside is not, whatever was written before.
    memory
        How the system says that it was killed for want of memory; empty where it does not.
    explain
        What an error's line means.
    """
    number = signal_of(status)
    if memory and _by_kernel(status):
        return HOST_MEMORY
    if number is None:
        named = _named(words, explain)
        if named:
            return named
        if status is None:
            return Finding("exited, status unknown", Severity.SEV2)
        if status == _AGENT_GONE:
            return Finding("lost its agent", Severity.SEV2, Blame.NOBODY)
        said = "internal error, exit code" if status == _INTERNAL else "exited with code"
        return Finding(f"{said} {status}", Severity.SEV2)
    name = _name(number)
    if number in _LIMITS:
        return Finding(f"{_LIMITS[signal.Signals(number)]} ({name})", Severity.PROGRAM, Blame.PROGRAM)
    if number in _OWN_FAULT:
        return _named(words, explain) or Finding(f"crashed ({name})", Severity.SEV2)
    return Finding(f"killed ({name})", Severity.SEV2)


def signal_of(status: int | None) -> int | None:
    """The signal that ended a process; also one that a shell in between made an exit code of (128 + n)."""
    if status is None:
        return None
    number = -status if status < 0 else status - 128
    return number if status < 0 or number in _known() else None


def describe_end(status: int | None, *, core: bool, memory: str, tail: str) -> str:
    """The evidence of an end, for people: how, what the system says, and the log's last lines."""
    number = signal_of(status)
    if number is not None:
        how = f"ended by {_name(number)}" + (", core dumped" if core else "")
    else:
        how = "ended, status unknown" if status is None else f"ended with exit code {status}"
    head = [how, *([memory, HOST_MEMORY_ADVICE] if memory and _by_kernel(status) else [])]
    return "\n".join([*head, tail.rstrip()] if tail.strip() else head)


def _named(words: str, explain: Callable[[str], Finding]) -> Finding | None:
    """What the last words say, if it is an error that is known: the first that is a cause by itself."""
    unknown = explain("")
    known = [finding for line in error_lines(words) if (finding := explain(line)) != unknown]
    if not known:
        return None
    finding = next((finding for finding in known if not finding.collateral), known[0])
    if finding.severity in (Severity.SEV3, Severity.INFO):
        # The process is gone, so trying again in place needs a new one.
        finding = msgspec.structs.replace(finding, severity=Severity.SEV2)
    return finding


def _by_kernel(status: int | None) -> bool:
    """Whether it ended as the kernel ends what has taken too much memory."""
    return status is None or signal_of(status) == signal.SIGKILL


def _known() -> set[int]:
    return {int(number) for number in signal.Signals}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

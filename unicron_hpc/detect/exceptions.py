"""Exception propagation: what a Python exception in a rank means.

The order of the table is the order of judgement: the first pattern that fits the exception's class and first
line decides. Sources of the classes: the error tables of the Unicron paper (SEV levels) and the messages of
torch, gloo and NCCL.
"""

from __future__ import annotations

import re

from unicron_hpc.detect.severity import Finding, Severity

_P = Severity.PROGRAM

_TABLE: tuple[tuple[re.Pattern[str], Finding], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), finding)
    for pattern, finding in (
        (r"uncorrectable ECC|ECC error|double.?bit", Finding("ECC error", Severity.SEV1)),
        (r"NVLink", Finding("NVLink error", Severity.SEV1)),
        (r"invalid DMA mapping", Finding("invalid DMA mapping", Severity.SEV1)),
        (r"fallen off the bus|GPU is lost|device handle", Finding("GPU driver error", Severity.SEV1)),
        (r"out of memory|OutOfMemoryError|MemoryError", Finding("out of memory", _P)),
        (r"\bnan\b|not finite|non-finite|\binf\b|ProgramFault", Finding("loss is not finite", _P)),
        (r"GroupsCut|EpochOver|PeerLost", Finding("groups cut", Severity.SEV3, collateral=True)),
        (
            r"connection (closed|reset|refused|was closed)|closed by (remote )?peer|broken pipe|socket closed"
            r"|Gloo|transport/tcp|DistBackendError|DistNetworkError|remote process exited",
            Finding("connection to a peer lost", Severity.SEV3, collateral=True),
        ),
        (
            r"NCCL.*time[d]?.?out|Watchdog caught|watchdog got stuck",
            Finding("NCCL timeout", Severity.SEV3, collateral=True),
        ),
        (r"timed out|TimeoutError", Finding("timeout", Severity.SEV3, collateral=True)),
        (r"illegal memory access", Finding("illegal memory access", Severity.SEV2)),
        (r"CUDA error|CUDNN|cublas", Finding("CUDA error", Severity.SEV2)),
        # SEV3: whoever notices holds sound state, and the next reports lead to a plan that fits it.
        (r"^StateMismatch", Finding("state from a peer does not check", Severity.SEV3)),
        (
            r"^(AssertionError|TypeError|ValueError|KeyError|IndexError|AttributeError|NameError"
            r"|ImportError|ModuleNotFoundError|NotImplementedError|ZeroDivisionError|ConfigError)\b",
            Finding("error of the program", _P),
        ),
    )
)


def explain_exception(error: str) -> Finding:
    """Finding for an exception.

    Parameters
    ----------
    error
        `Class: first line of its text`.

    Returns
    -------
    Finding
        Unknown exceptions are SEV2: a fresh process, within the budget of attempts.
    """
    for pattern, finding in _TABLE:
        if pattern.search(error):
            return finding
    return Finding("exception in a rank", Severity.SEV2)

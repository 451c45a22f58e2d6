"""Process supervision: what the end of a rank process means."""

from __future__ import annotations

import signal

from unicron_hpc.detect.severity import Finding, Severity

#: Signals by which a process ends because of its own doing.
_OWN_FAULT = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


def explain_exit(status: int | None) -> Finding:
    """Finding for a rank that ended before its time.

    Parameters
    ----------
    status
        Exit code, or minus the signal's number; None when nobody could tell.
    """
    if status is None:
        return Finding("exited, status unknown", Severity.SEV2)
    if status >= 0:
        return Finding(f"exited with code {status}", Severity.SEV2)
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status in _OWN_FAULT:
        return Finding(f"crashed ({name})", Severity.SEV2)
    return Finding(f"killed ({name})", Severity.SEV2)

"""Ending a job well when the node of its batch script is dead.

Slurm takes a batch job's result from the batch script's node. With `--no-kill` a job outlives that node,
and then nobody reports a result: after the last step has ended the job stays RUNNING until its time limit.
Tried on real clusters (22.05.8 and 24.11.5), as a plain user, job submitted with --no-kill, batch node
killed, a step alive on another node:

- `scancel JOB` ends it, as CANCELLED;
- when its steps have ended it stays RUNNING;
- libslurm's `slurm_complete_job(job_id, status)` from a surviving node ends it at once as COMPLETED for
  status 0 (exit code 0:0), as FAILED with exit code n:0 for status n << 8. slurmctld lets the job's owner
  do that.

No command offers that call, so it is made through ctypes, in a process of its own: libslurm ends its
process when something is wrong. Ending the job kills the job's steps, the caller's too: call it last.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import commands

_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job was ended.

    Attributes
    ----------
    completed
        Whether Slurm has the result that was reported; else the job was cancelled.
    message
        What happened.
    """

    completed: bool
    message: str


def complete_job(job_id: str, exit_code: int = 0) -> Ending:
    """End a job with an exit code, from any of its nodes; cancel it where that cannot be done.

    Parameters
    ----------
    job_id
        The job's number.
    exit_code
        0 to 255; the job becomes COMPLETED for 0 and FAILED otherwise.

    Raises
    ------
    SlurmError
        When it could not even be cancelled.
    """
    argv = [sys.executable, "-m", __name__, job_id, str(exit_code)]
    try:
        done = commands.run(argv, timeout=_TIMEOUT)
        if done.code == 0:
            return Ending(True, f"job {job_id} ended with exit code {exit_code}")
        why = done.words or f"ended with code {done.code}"
    except SlurmError as error:
        why = error.message
    cancelled = commands.run(["scancel", job_id])
    if cancelled.code:
        raise SlurmError(f"{cancelled.words}; before that: {why}", where=f"ending job {job_id}")
    return Ending(False, f"job {job_id} was cancelled, since libslurm could not end it: {why}")


def _libraries() -> Iterator[str]:
    """Where libslurm may be: the loader's place, then beside Slurm's plugins, where every node has it."""
    found = ctypes.util.find_library("slurm")
    if found:
        yield found
    config = commands.run(["scontrol", "show", "config"], timeout=10.0).stdout
    match = re.search(r"^PluginDir\s*=\s*(\S+)", config, re.MULTILINE)
    for folder in match.group(1).split(":") if match else ():
        for path in (Path(folder) / "libslurmfull.so", Path(folder).parent / "libslurmfull.so"):
            if path.is_file():
                yield str(path)


def _report(job_id: int, exit_code: int) -> str:
    """Make the call; what went wrong, or an empty string. May end the process."""
    problem = "no libslurm was found"
    for path in _libraries():
        try:
            # Global: Slurm's plugins take their symbols from it.
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL, use_errno=True)
            call = library.slurm_complete_job
        except (OSError, AttributeError) as error:
            problem = str(error)
            continue
        if hasattr(library, "slurm_init"):
            library.slurm_init.argtypes = [ctypes.c_char_p]
            library.slurm_init.restype = None
            library.slurm_init(None)
        call.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
        call.restype = ctypes.c_int
        # A status as wait() gives it.
        if call(job_id, exit_code << 8) == 0:
            return ""
        library.slurm_strerror.argtypes = [ctypes.c_int]
        library.slurm_strerror.restype = ctypes.c_char_p
        reason = library.slurm_strerror(ctypes.get_errno())
        return reason.decode(errors="replace") if reason else os.strerror(ctypes.get_errno())
    return problem


if __name__ == "__main__":
    trouble = _report(int(sys.argv[1]), int(sys.argv[2]))
    if trouble:
        print(trouble, file=sys.stderr)
        sys.exit(1)

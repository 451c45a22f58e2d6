"""What the checks of a node say: whether it can do its work, and what may become a trouble."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from unicron_hpc.detect.severity import Blame, Finding, Severity

GIB = 1024**3
#: Less than this is worth a warning, in bytes.
LITTLE_MEMORY = GIB
LITTLE_SHARED_MEMORY = GIB // 4
LITTLE_DISK = GIB
#: A small file that takes longer to write through to disk than this makes checkpoints slow, in seconds.
SLOW_WRITE = 2.0

#: What a file system answers that has no room: every node sees that alike, and none is to blame.
_FULL = {errno.ENOSPC, errno.EDQUOT}


def _warning(error: str) -> Finding:
    return Finding(error, Severity.INFO, Blame.NOBODY)


GPU_MISSING = Finding("GPU missing", Severity.SEV1, Blame.NODE)
FOLDER_NOT_WRITABLE = Finding("run folder not writable", Severity.SEV1, Blame.NODE)
FOLDER_FULL = _warning("run folder is full")
FOLDER_SLOW = _warning("run folder is slow")
GPU_DRIVER_SILENT = _warning("GPU driver does not answer")
GPU_UNCHECKED = _warning("GPUs could not be counted")
MEMORY_SHORT = _warning("little memory is free")
SHARED_MEMORY_SHORT = _warning("little shared memory is free")
DISK_SHORT = _warning("run folder is nearly full")
CLOCK_OFF = _warning("clock differs")


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What was measured on a node. None: not asked for, or no answer.

    Attributes
    ----------
    gpus, gpu_problem, gpu_seconds
        GPUs that the driver lists; what it said instead; the time it had when it gave no answer.
    memory, shared_memory, disk
        Free bytes of memory, of /dev/shm and of the run folder's file system.
    write_seconds, write_error
        How long a small file took to be on disk in the run folder; or the error number and its text.
    folder_seconds
        The time that the run folder had when it gave no answer.
    """

    gpus: int | None = None
    gpu_problem: str = ""
    gpu_seconds: float | None = None
    memory: int | None = None
    shared_memory: int | None = None
    disk: int | None = None
    write_seconds: float | None = None
    write_error: tuple[int, str] | None = None
    folder_seconds: float | None = None


def judge(report: NodeReport, gpus_wanted: int) -> list[tuple[Finding, str]]:
    """What of a node's state is worth telling.

    Parameters
    ----------
    report
        The measurements.
    gpus_wanted
        GPUs that the job asked for on this node; 0 for none.

    Returns
    -------
    list of (Finding, str)
        With the evidence for people. SEV1: the node cannot do its work.
    """
    found: list[tuple[Finding, str]] = []
    if gpus_wanted:
        found += _gpus(report, gpus_wanted)
    found += _folder(report)
    for free, least, finding, what in (
        (report.memory, LITTLE_MEMORY, MEMORY_SHORT, "memory"),
        (report.shared_memory, LITTLE_SHARED_MEMORY, SHARED_MEMORY_SHORT, "/dev/shm"),
        (report.disk, LITTLE_DISK, DISK_SHORT, "the run folder's file system"),
    ):
        if free is not None and free < least:
            found.append((finding, f"{free / GIB:.2f} GiB of {what} are free"))
    return found


def _gpus(report: NodeReport, wanted: int) -> list[tuple[Finding, str]]:
    if report.gpu_seconds is not None:
        return [(GPU_DRIVER_SILENT, f"nvidia-smi gave no answer within {report.gpu_seconds:.0f} s")]
    if report.gpus is None:
        return [(GPU_UNCHECKED, report.gpu_problem or "nvidia-smi said nothing")]
    if report.gpus < wanted:
        said = f"; {report.gpu_problem}" if report.gpu_problem else ""
        return [(GPU_MISSING, f"nvidia-smi lists {report.gpus} GPUs, the job asked for {wanted}{said}")]
    return []


def _folder(report: NodeReport) -> list[tuple[Finding, str]]:
    if report.folder_seconds is not None:
        return [(FOLDER_SLOW, f"no answer within {report.folder_seconds:.0f} s")]
    if report.write_error is not None:
        number, text = report.write_error
        return [(FOLDER_FULL if number in _FULL else FOLDER_NOT_WRITABLE, text)]
    if report.write_seconds is not None and report.write_seconds > SLOW_WRITE:
        return [(FOLDER_SLOW, f"a small file took {report.write_seconds:.1f} s to be on disk")]
    return []

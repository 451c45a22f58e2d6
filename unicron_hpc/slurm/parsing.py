"""What Slurm's commands print, taken apart. Pure; the same for Slurm 22.05 and 24.11."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import hostlists
from unicron_hpc.slurm.states import JobState, NodeState, job_state_of, parse_job_state, parse_node_state

_JOB_ID = re.compile(r"(\d+)(?:;\S+)?", re.ASCII)
_SUBMITTED = re.compile(r"Submitted batch job (\d+)", re.ASCII)
_VERSION = re.compile(r"(?:^|\s|-)(\d+)\.(\d+)(?:\.(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ExitCode:
    """`code:signal` as Slurm prints it."""

    code: int
    signal: int


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job as Slurm knows it.

    Attributes
    ----------
    job_id
        Its number, or `100_3` for an array's task.
    state
        Its state.
    nodes
        Its nodes, in Slurm's order; empty while it waits.
    reason
        Why it waits or ended; empty where Slurm gives none.
    batch_host
        Node that runs the batch script; empty where Slurm does not say.
    exit_code
        Exit code and signal of the batch script.
    derived_exit_code
        Highest one of all its steps.
    """

    job_id: str
    state: JobState
    nodes: tuple[str, ...] = ()
    reason: str = ""
    batch_host: str = ""
    exit_code: ExitCode | None = None
    derived_exit_code: ExitCode | None = None


def parse_submission(stdout: str) -> str:
    """The job id in sbatch's output, with or without `--parsable`, whatever else a site's wrapper prints.

    Raises
    ------
    SlurmError
        When there is none.
    """
    if match := _SUBMITTED.search(stdout):
        return match.group(1)
    for line in reversed(stdout.splitlines()):
        if match := _JOB_ID.fullmatch(line.strip()):
            return match.group(1)
    raise SlurmError(f"no job id in sbatch's answer {stdout.strip()!r}", where="sbatch")


def parse_version(text: str) -> tuple[int, int, int]:
    """Slurm's version in `slurm 22.05.9`, `slurm-wlm 22.05.8` or `slurm 26.11.0-0rc1`.

    Raises
    ------
    SlurmError
        When there is none.
    """
    match = _VERSION.search(text.strip())
    if match is None:
        raise SlurmError(f"no Slurm version in {text.strip()!r}")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def parse_exit_code(text: str) -> ExitCode | None:
    """`code:signal`; None where it is none."""
    match = re.fullmatch(r"(?:[A-Za-z]+=)?(\d+):(\d+)", text.strip(), re.ASCII)
    return ExitCode(int(match[1]), int(match[2])) if match else None


def parse_show_job(text: str) -> dict[str, JobRecord]:
    """Jobs in the output of `scontrol show job --oneliner`, by id."""
    found: dict[str, JobRecord] = {}
    for line in text.splitlines():
        if not line.startswith("JobId="):
            continue
        job_id = _value(line, "JobId")
        found[job_id] = JobRecord(
            job_id,
            parse_job_state(_value(line, "JobState")),
            _nodes(_value(line, "NodeList")),
            _value(line, "Reason"),
            _value(line, "BatchHost"),
            parse_exit_code(_value(line, "ExitCode")),
            parse_exit_code(_value(line, "DerivedExitCode")),
        )
    return found


def parse_show_node(text: str) -> dict[str, NodeState]:
    """Node states in the output of `scontrol show node --oneliner`, by node name."""
    lines = (line for line in text.splitlines() if line.startswith("NodeName="))
    return {_value(line, "NodeName"): parse_node_state(_value(line, "State")) for line in lines}


def parse_sacct(text: str, columns: Sequence[str] | None = None) -> dict[str, JobRecord]:
    """Jobs in the output of `sacct --parsable2`, without their steps.

    Parameters
    ----------
    columns
        Names of the fields; the first line is the header when None.

    Of several records with the same id (ids are used again) the one submitted last counts.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if columns is None:
        columns = lines[0].split("|") if lines else []
        lines = lines[1:]
    found: dict[str, tuple[str, JobRecord]] = {}
    for line in lines:
        row = dict(zip((name.strip().lower() for name in columns), line.split("|"), strict=False))
        job_id = row.get("jobid") or row.get("jobidraw", "")
        if not job_id or "." in job_id:
            continue
        submitted = row.get("submit", "")
        if job_id in found and submitted < found[job_id][0]:
            continue
        found[job_id] = (
            submitted,
            JobRecord(
                job_id,
                parse_job_state(row.get("state", "")),
                _nodes(row.get("nodelist", "")),
                exit_code=parse_exit_code(row.get("exitcode", "")),
                derived_exit_code=parse_exit_code(row.get("derivedexitcode", "")),
            ),
        )
    return {job_id: record for job_id, (_, record) in found.items()}


def parse_squeue(text: str) -> dict[str, JobRecord]:
    """Jobs in the output of `squeue --noheader --format=%i|%T|%R` (nodes, or the reason in brackets)."""
    found: dict[str, JobRecord] = {}
    for line in text.splitlines():
        job_id, bar, rest = line.strip().partition("|")
        state, bar2, last = rest.partition("|")
        if not bar or not bar2 or re.fullmatch(r"\d[\d_+]*", job_id, re.ASCII) is None:
            continue
        waits = last.startswith("(")
        found[job_id] = JobRecord(
            job_id,
            parse_job_state(state),
            () if waits else _nodes(last),
            last[1:].removesuffix(")") if waits else "",
        )
    return found


def parse_squeue_json(document: Any) -> dict[str, JobRecord]:
    """Jobs in the output of `squeue --json`: states are a word or a list, by version of Slurm."""
    found: dict[str, JobRecord] = {}
    jobs = document.get("jobs") if isinstance(document, dict) else None
    for job in jobs if isinstance(jobs, list) else []:
        state = job.get("job_state", [])
        words = [str(word) for word in state] if isinstance(state, list) else [str(state)]
        nodes = job.get("nodes", "")
        job_id = str(job.get("job_id", ""))
        found[job_id] = JobRecord(
            job_id,
            job_state_of(words),
            _nodes(nodes if isinstance(nodes, str) else ""),
            str(job.get("state_reason", "")),
            str(job.get("batch_host", "")),
        )
    return found


def parse_partition_sizes(text: str) -> dict[str, int]:
    """Nodes of each partition in the output of `sinfo --noheader --format=%R|%D`."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, count = line.strip().partition("|")
        if count.isdecimal():
            sizes[name] = sizes.get(name, 0) + int(count)
    return sizes


def _value(line: str, key: str) -> str:
    """The value of `key=` in a line of scontrol's; `(null)`, `n/a` and the like count as none."""
    match = re.search(rf"(?:^|\s){re.escape(key)}=(\S*)", line)
    word = match.group(1) if match else ""
    return "" if word in {"(null)", "n/a", "N/A", "None", "Unknown"} else word


def _nodes(text: str) -> tuple[str, ...]:
    return () if text.strip() in {"", "(null)", "None assigned", "n/a"} else hostlists.expand(text)

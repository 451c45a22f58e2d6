"""What Slurm knows now: jobs, nodes, partitions. The text forms that Slurm 22.05 and 24.11 share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import commands, hostlists, parsing
from unicron_hpc.slurm.node_records import NodeRecord, parse_node_records
from unicron_hpc.slurm.parsing import JobRecord
from unicron_hpc.slurm.states import JobState, NodeState

#: Seconds to wait for an answer about a node: who asks in the middle of a recovery cannot wait long.
QUERY_TIMEOUT = 10.0
_SACCT_FIELDS = ("JobIDRaw", "State", "NodeList", "ExitCode", "DerivedExitCode", "Submit")
_NO_ACCOUNTING = (
    "accounting storage is disabled",
    "SLURM_PERSIST_INIT",
    "Connection refused",
    "Problem talking",
)
#: State of a job that neither slurmctld nor accounting knows: it has ended, nobody knows how.
FORGOTTEN = JobState("UNKNOWN", (), "no longer known to slurmctld")


def job(job_id: str, *, timeout: float = commands.DEFAULT_TIMEOUT) -> JobRecord:
    """All that Slurm says of a job: from slurmctld, and from accounting once slurmctld has forgotten it.

    A job that neither knows has the state `UNKNOWN` (`FORGOTTEN`); that is no proof of success.

    Raises
    ------
    SlurmError
        When Slurm does not answer.
    """
    shown = commands.run(["scontrol", "show", "job", "--oneliner", job_id], timeout=timeout)
    records = parsing.parse_show_job(shown.stdout)
    if records:
        return records.get(job_id) or next(iter(records.values()))
    if "Invalid job id" not in shown.words:
        raise shown.error()
    argv = ["sacct", "--noheader", "--parsable2", f"--jobs={job_id}", f"--format={','.join(_SACCT_FIELDS)}"]
    told = commands.run(argv, timeout=timeout)
    if told.code and not any(word in told.stderr for word in _NO_ACCOUNTING):
        raise told.error()
    return parsing.parse_sacct(told.stdout, _SACCT_FIELDS).get(job_id, JobRecord(job_id, FORGOTTEN))


def job_nodes(job_id: str) -> tuple[str, ...]:
    """The nodes that the job has now, in Slurm's order; lost ones leave this list after SlurmdTimeout."""
    return job(job_id).nodes


def node_states(nodes: Sequence[str] = (), *, timeout: float = QUERY_TIMEOUT) -> Mapping[str, NodeState]:
    """States of the named nodes, or of all; a node that Slurm does not know is absent.

    Raises
    ------
    SlurmError
        When Slurm does not answer.
    """
    argv = ["scontrol", "show", "node", "--oneliner"]
    if nodes:
        argv.append(hostlists.fold(nodes))
    shown = commands.run(argv, timeout=timeout)
    states = parsing.parse_show_node(shown.stdout)
    if not states and shown.code and "not found" not in shown.words + shown.stdout:
        raise shown.error()
    return states


def node_records(
    nodes: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = QUERY_TIMEOUT
) -> Mapping[str, NodeRecord]:
    """The named nodes with reason and times; one that Slurm does not know is absent.

    Raises
    ------
    SlurmError
        When Slurm does not answer.
    """
    argv = ["scontrol", "show", "node", "--oneliner", hostlists.fold(nodes)]
    shown = commands.run(argv, timeout=timeout, env=env)
    records = parse_node_records(shown.stdout)
    if not records and shown.code and "not found" not in shown.words + shown.stdout:
        raise shown.error()
    return records


def slurm_version() -> tuple[int, int, int]:
    """Major, minor and micro version of Slurm's commands here."""
    return parsing.parse_version(commands.run(["sinfo", "--version"]).stdout)


def partition_sizes(env: Mapping[str, str] | None = None) -> Mapping[str, int]:
    """Nodes of each partition that the user may see; empty where sinfo cannot tell."""
    try:
        told = commands.run(["sinfo", "--noheader", "--format=%R|%D"], timeout=QUERY_TIMEOUT, env=env)
    except SlurmError:
        return {}
    return parsing.parse_partition_sizes(told.stdout) if told.code == 0 else {}


def default_partition(env: Mapping[str, str] | None = None) -> str:
    """The partition that jobs get which name none; empty where there is none or sinfo cannot tell."""
    try:
        told = commands.run(["sinfo", "--noheader", "--format=%P"], timeout=QUERY_TIMEOUT, env=env)
    except SlurmError:
        return ""
    names = (line.strip() for line in told.stdout.splitlines())
    return next((name[:-1] for name in names if name.endswith("*")), "")

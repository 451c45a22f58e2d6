"""Asking Slurm to drain a node of ours. A refusal is the normal case: it takes administrator rights."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import commands
from unicron_hpc.slurm.commands import Completed
from unicron_hpc.slurm.drain_reasons import LONGEST
from unicron_hpc.slurm.node_records import NodeRecord, parse_node_records

_TRY_AGAIN = ("Job update not available right now", "try again", "Unable to contact slurm controller")
_NO_RIGHTS = ("Invalid user id", "Access/permission denied")
_WAITS = (0.2, 0.5, 1.0, 2.0, 4.0)

Run = Callable[[Sequence[str]], Completed]


@dataclass(frozen=True, slots=True)
class DrainResult:
    """How it went.

    Attributes
    ----------
    drained
        Whether the node gets no new job.
    message
        What happened, and who must act where it did not.
    node, reason
        What was asked.
    refused
        Whether it failed for want of rights; a site's helper may still do it.
    """

    drained: bool
    message: str
    node: str
    reason: str
    refused: bool = False


def drain(
    node: str,
    reason: str,
    job_nodes: Iterable[str],
    *,
    job_id: str,
    run: Run = commands.run,
    wait: Callable[[float], None] = time.sleep,
) -> DrainResult:
    """Have Slurm give `node` no new job.

    Parameters
    ----------
    node
        Slurm's name of it.
    reason
        The reason to keep with it, one printable line.
    job_nodes
        The allocation; a node outside it is refused.
    job_id
        The job that asks.
    run, wait
        How commands are run and time is waited.

    Returns
    -------
    DrainResult
        Never raises for what Slurm answers, nor for its silence: training goes on either way.
    """

    def result(drained: bool, message: str, refused: bool = False) -> DrainResult:
        return DrainResult(drained, message, node, reason, refused)

    if node not in set(job_nodes):
        return result(False, f"{node} is not in job {job_id}'s allocation; it is left alone")
    said = ""
    for pause in (*_WAITS, None):
        # Looked at before every try: while we waited an administrator may have drained it with a reason.
        record = _look(node, run)
        if record is not None and (record.state.draining or _is_down_by_somebody(record)):
            return result(True, f"{node} is {record.state} already; its reason is left as it is")
        reason = with_earlier(record.somebodys_reason if record else "", reason)
        try:
            done = run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])
        except SlurmError as error:
            return result(False, f"scontrol could not be asked to drain {node}: {error.message}")
        if done.code == 0:
            return result(*_verified(node, reason, run))
        said = done.words
        if any(word in said for word in _NO_RIGHTS):
            message = (
                f"Slurm lets only an administrator drain {node} ({said}); "
                f"ask one to run: scontrol update NodeName={node} State=DRAIN Reason={_quoted(reason)}"
            )
            return result(False, message, refused=True)
        if pause is None or not any(word in said for word in _TRY_AGAIN):
            break
        wait(pause)
    return result(False, f"Slurm did not drain {node}: {said}")


def _quoted(reason: str) -> str:
    """One word for a shell, whatever an administrator had written before ours."""
    return shlex.quote(reason) if set(reason) & set('"$`\\!') else f'"{reason}"'


def with_earlier(earlier: str, ours: str) -> str:
    """A reason that keeps what somebody wrote before: Slurm replaces it, and drains nothing without one."""
    if not earlier or earlier in ours:
        return ours
    return f"{earlier}; {ours}"[: max(LONGEST, len(earlier))]


def _is_down_by_somebody(record: NodeRecord) -> bool:
    """Out of service by a person's word, which a drain of ours would overwrite for nothing."""
    return record.state.base == "DOWN" and bool(record.somebodys_reason)


def _look(node: str, run: Run) -> NodeRecord | None:
    """What Slurm says of the node; None where it says nothing."""
    try:
        shown = run(["scontrol", "show", "node", "--oneliner", node])
    except SlurmError:
        return None
    return parse_node_records(shown.stdout).get(node)


def _verified(node: str, reason: str, run: Run) -> tuple[bool, str]:
    """Whether Slurm has the node drained now, and whose reason it keeps."""
    record = _look(node, run)
    if record is None:
        return True, f"{node} is draining"
    if not record.state.draining:
        return False, f"Slurm took the order to drain {node}, which is {record.state}: somebody resumed it"
    if record.reason != reason:
        return True, f"{node} is draining; the reason kept with it is {record.by or 'somebody'}'s"
    return True, f"{node} is draining"

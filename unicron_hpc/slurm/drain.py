"""Asking Slurm to drain a node of ours. A refusal is the normal case: it takes administrator rights."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import commands, parsing
from unicron_hpc.slurm.commands import Completed

#: Name that every reason starts with, so that an administrator knows who asked.
PRODUCT = "unicron_hpc"
_LONGEST_REASON = 200
_TRY_AGAIN = ("Job update not available right now", "try again", "Unable to contact slurm controller")
_NO_RIGHTS = ("Invalid user id", "Access/permission denied")
_WAITS = (0.2, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """How it went.

    Attributes
    ----------
    drained
        Whether Slurm took it.
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


def drain_reason(job_id: str, cause: str) -> str:
    """The reason kept with the node: product, job and cause on one printable line without quotes."""
    plain = re.sub(r"[^\x20-\x7e]+", " ", cause)
    plain = re.sub(r"[\"'`\\|;$<>&]", "", plain)
    plain = " ".join(plain.split()) or "cause not known"
    return f"{PRODUCT} job {job_id}: {plain}"[:_LONGEST_REASON].rstrip()


def drain(
    node: str,
    cause: str,
    job_nodes: Iterable[str],
    *,
    job_id: str,
    run: Callable[[Sequence[str]], Completed] = commands.run,
    wait: Callable[[float], None] = time.sleep,
) -> DrainResult:
    """Have Slurm give `node` no new job.

    Parameters
    ----------
    node
        Slurm's name of it.
    cause
        What was seen, e.g. `Xid 79 on rank 3`.
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
    reason = drain_reason(job_id, cause)
    if node not in set(job_nodes):
        return DrainResult(
            False, f"{node} is not in job {job_id}'s allocation; it is left alone", node, reason
        )
    if _drains_already(node, run):
        return DrainResult(True, f"{node} was draining already; its reason is left as it is", node, reason)
    said = ""
    for pause in (*_WAITS, None):
        try:
            done = run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])
        except SlurmError as error:
            return DrainResult(
                False, f"scontrol could not be asked to drain {node}: {error.message}", node, reason
            )
        if done.code == 0:
            return DrainResult(True, f"{node} is draining", node, reason)
        said = done.words
        if any(word in said for word in _NO_RIGHTS):
            message = (
                f"Slurm lets only an administrator drain {node} ({said}); "
                f'ask one to run: scontrol update NodeName={node} State=DRAIN Reason="{reason}"'
            )
            return DrainResult(False, message, node, reason, refused=True)
        if pause is None or not any(word in said for word in _TRY_AGAIN):
            break
        wait(pause)
    return DrainResult(False, f"Slurm did not drain {node}: {said}", node, reason)


def _drains_already(node: str, run: Callable[[Sequence[str]], Completed]) -> bool:
    """Whether somebody drained the node before; then the reason given at that time must stay."""
    try:
        shown = run(["scontrol", "show", "node", "--oneliner", node])
    except SlurmError:
        return False
    state = parsing.parse_show_node(shown.stdout).get(node)
    return state is not None and state.draining

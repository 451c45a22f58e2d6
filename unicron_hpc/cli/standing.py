"""How a run stands whose journal has no end: its agents may have been killed before they could write one."""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from unicron_hpc.cli.find_run import job_of
from unicron_hpc.errors import SlurmError, UnicronError
from unicron_hpc.report.status import ENDED
from unicron_hpc.slurm import queries
from unicron_hpc.supervisor.allocation import read_allocation
from unicron_hpc.supervisor.directory import AGENTS
from unicron_hpc.supervisor.outcome import read_outcome

#: Longest wait for each of Slurm's commands, in seconds: somebody looks at a terminal meanwhile.
_PATIENCE = 10.0
#: Slurm's states of a job that was put back into its queue, or runs again.
_TRIED_AGAIN = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "EXPEDITING"})


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a run from elsewhere than its journal.

    Attributes
    ----------
    state
        Slurm's word for it; empty where nobody can tell.
    over
        Whether it is known to have ended: nothing more will come.
    words
        A sentence for people; empty for a job that runs as it should.
    """

    state: str
    over: bool = False
    words: str = ""

    @property
    def again(self) -> bool:
        """Whether Slurm has put the job back into its queue: it will go on in the same run folder."""
        return self.state in _TRIED_AGAIN


def standing(run_folder: Path) -> Standing:
    """Ask whoever knows: the summary, then the processes of this machine or Slurm; never raises."""
    try:
        allocation = read_allocation(run_folder)
    except UnicronError:  # none yet: the job waits in the queue
        job_id = job_of(run_folder)
        return in_slurm(job_id) if job_id.isdigit() else Standing("")
    outcome = read_outcome(run_folder)
    if outcome is not None:
        again = put_back(allocation.job_id) if allocation.on_slurm and outcome.exit_code else None
        cause = f": {outcome.cause}" if outcome.cause else ""
        words = f"the job has {outcome.state}{cause}"
        return again or Standing(ENDED.get(outcome.state, "FAILED"), True, words)
    return in_slurm(allocation.job_id) if allocation.on_slurm else _on_this_machine(run_folder)


def after_end(run_folder: Path) -> Standing:
    """How a run stands whose journal has ended: Slurm may put its job back into the queue; never raises."""
    try:
        allocation = read_allocation(run_folder)
    except UnicronError:
        return Standing("")
    return in_slurm(allocation.job_id) if allocation.on_slurm else Standing("", True)


def put_back(job_id: str) -> Standing | None:
    """How an ended job stands that Slurm has put back into its queue; None for any other."""
    found = in_slurm(job_id)
    return found if found.again else None


def in_slurm(job_id: str) -> Standing:
    """What Slurm says of a job."""
    if not shutil.which("scontrol"):
        return Standing("", words=f"Slurm's commands are not in PATH: whether job {job_id} runs is not known")
    try:
        record = queries.job(job_id, timeout=_PATIENCE)
    except SlurmError as error:
        why = error.message.splitlines()[0]
        return Standing("", words=f"Slurm does not answer ({why}): whether job {job_id} runs is not known")
    state = record.state
    if state == queries.FORGOTTEN:
        return Standing("UNKNOWN", True, f"Slurm does not know job {job_id} any more: it has ended somehow")
    if state.name == "RUNNING":
        return Standing(state.name)
    reason = f" ({record.reason})" if record.reason not in ("", "None") else ""
    told = f"Slurm has job {job_id} as {state.name}{reason}: {state.sentence}".rstrip(".")
    return Standing("" if state.name == "UNKNOWN" else state.name, state.terminal, told)


def _on_this_machine(run_folder: Path) -> Standing:
    """The same of a run without Slurm, whose agents are processes of one machine."""
    here, elsewhere = socket.gethostname(), set()
    for path in (run_folder / AGENTS).glob("[!.]*.json"):
        try:
            agent = json.loads(path.read_bytes())
            host, pid = agent.get("host", here), int(agent["pid"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if host != here:
            elsewhere.add(host)
        elif _is_agent(pid, run_folder):
            return Standing("RUNNING")
    if elsewhere:
        names = " and ".join(sorted(elsewhere))
        return Standing("", words=f"its processes are on {names}: look there whether they run")
    return Standing("FAILED", True, "none of its processes is left on this machine")


def _is_agent(pid: int, run_folder: Path) -> bool:
    """Whether a process is an agent of this run, and not another one that got its number."""
    try:
        return os.fsencode(run_folder.name) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False

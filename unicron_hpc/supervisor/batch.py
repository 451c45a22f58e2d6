"""The batch script's process: starts the agents in one job step and ends the job as the run ended.

Nothing in recovery depends on it. When its node dies the agents go on, and the coordinator ends the job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from unicron_hpc.config import Settings, load_resolved
from unicron_hpc.errors import UnicronError
from unicron_hpc.report.journal import SUMMARY
from unicron_hpc.report.summary import write_summary
from unicron_hpc.slurm.job_environment import read_job_environment
from unicron_hpc.slurm.run_folder import claim_run_folder
from unicron_hpc.slurm.signals import stopping
from unicron_hpc.supervisor.allocation import Allocation, write_allocation
from unicron_hpc.supervisor.keys import make_keys
from unicron_hpc.supervisor.last_resort import bad_nodes_last, leave_out_after_requeue
from unicron_hpc.supervisor.outcome import Outcome, read_outcome

#: How long agents may take to leave after the outcome is known, before the job ends around them, in seconds.
LEAVE_GRACE = 15.0
#: The same after a second SIGTERM or SIGINT, whether the outcome is known or not.
HURRIED_GRACE = 3.0
#: How often the outcome is looked for, in seconds; srun's own end is noticed at once.
LOOK_INTERVAL = 1.0


def srun_command(nodes: Sequence[str], run_folder: Path) -> list[str]:
    """The one job step that runs an agent on every node.

    `sbatch --no-kill` does not reach srun, and a lost task must neither end nor hold up the others.
    """
    return [
        "srun",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--cpu-bind=none",
        "--unbuffered",
        sys.executable,
        "-m",
        "unicron_hpc.supervisor.agent",
        str(run_folder),
    ]


def allocation_of(environment: Mapping[str, str], settings: Settings) -> Allocation:
    """What Slurm granted.

    Raises
    ------
    SlurmError
        When the variables of a job are missing, or are of another one.
    """
    job = read_job_environment(environment)
    return Allocation(
        job_id=job.job_id,
        nodes=job.nodes,
        active=min(settings.slurm.nodes, len(job.nodes)),
        slots=settings.slurm.ranks_per_node,
        batch_node=job.node,
        shown_id=job.shown_id,
        ends=job.ends,
    )


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of srun, less the sizes that its own options give and that go stale with lost nodes."""
    stale = (
        "SLURM_NNODES",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NTASKS",
        "SLURM_NPROCS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_TASKS_PER_NODE",
        "SLURM_DISTRIBUTION",
    )
    return {key: value for key, value in environment.items() if key not in stale}


def run_step(
    command: Sequence[str],
    run_folder: Path,
    environment: Mapping[str, str],
    stop_signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT),
) -> Outcome:
    """Run the agents until the run is over, however it ends.

    Parameters
    ----------
    command, environment
        Of the job step.
    run_folder
        Where the agents say how it ended.
    stop_signals
        Are passed on to the agents as a wish to end. A second one shortens the wait for them.
    """
    # A requeued job keeps its number and so its folder: how the attempt before ended says nothing of this.
    (run_folder / SUMMARY).unlink(missing_ok=True)
    # In a session of its own: on SIGHUP srun kills every task of the step, and that is what the kernel sends
    # to our process group should this process die while the group is stopped.
    process = subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, env=dict(environment), start_new_session=True
    )

    asked = 0

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        # On SIGTERM srun kills all tasks; SIGUSR1 it passes on to the agents, whose coordinator ends the run.
        process.send_signal(signal.SIGUSR1)

    for number in stop_signals:
        signal.signal(number, forward)
    deadline: float | None = None
    hurried = False
    while True:
        try:
            code = process.wait(timeout=LOOK_INTERVAL)
            break
        except subprocess.TimeoutExpired:
            pass
        if asked > 1 and not hurried:
            hurried, deadline = True, time.monotonic() + HURRIED_GRACE
        if deadline is None:
            if read_outcome(run_folder) is not None:
                deadline = time.monotonic() + LEAVE_GRACE
        elif time.monotonic() > deadline:
            # A lost node's task keeps srun waiting for SlurmdTimeout; the run itself is over.
            process.kill()
            code = process.wait()
            break
    outcome = read_outcome(run_folder)
    if outcome is None:
        cause = f"all agents ended (srun: {code}) before the run was over; see logs/ in {run_folder}"
        outcome = Outcome("cancelled" if asked else "failed", 1, cause)
        write_summary(run_folder, state=outcome.state, exit_code=1, cause=cause, started=time.time())
    return outcome


def main() -> None:
    """Entry point: `python -m unicron_hpc.supervisor.batch STAGED_RUN_FOLDER`."""
    os.umask(0o077)
    try:
        run_folder = claim_run_folder(Path(sys.argv[1]), os.environ["SLURM_JOB_ID"])
        settings = load_resolved(run_folder / "train.yaml")
        (run_folder / "logs").mkdir(mode=0o700, exist_ok=True)
        allocation = bad_nodes_last(allocation_of(os.environ, settings), settings, run_folder)
        make_keys(run_folder)
        write_allocation(run_folder, allocation)
        print(f"unicron: job {allocation.shown_id}, run folder {run_folder}", flush=True)
        outcome = run_step(
            srun_command(allocation.nodes, run_folder),
            run_folder,
            step_environment(os.environ),
            stopping(settings.slurm.signal),
        )
    except UnicronError as error:
        sys.exit(f"unicron: FAILED: {error}")
    if outcome.exit_code:
        leave_out_after_requeue(allocation, settings, run_folder)
    words = f"unicron: {outcome.state}" + (f": {outcome.cause}" if outcome.cause else "")
    print(words, file=sys.stderr if outcome.exit_code else sys.stdout, flush=True)
    sys.exit(outcome.exit_code)


if __name__ == "__main__":
    main()

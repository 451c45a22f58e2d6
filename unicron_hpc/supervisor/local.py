"""`--cluster local`: the same agents as plain processes of this machine, without Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from unicron_hpc.config import Settings
from unicron_hpc.report.summary import write_summary
from unicron_hpc.supervisor.agent_environment import NODE_VARIABLE
from unicron_hpc.supervisor.allocation import Allocation, write_allocation
from unicron_hpc.supervisor.keys import make_keys
from unicron_hpc.supervisor.outcome import read_outcome

#: How long agents may take to leave after a signal or the end, in seconds.
LEAVE_GRACE = 15.0
#: How often it is looked whether the run is over, in seconds.
LOOK_INTERVAL = 0.2


def run(settings: Settings, run_folder: Path) -> int:
    """Run the job to its end on this machine.

    Parameters
    ----------
    settings
        What to run; `slurm.nodes` + `slurm.spares` agents are started.
    run_folder
        An existing folder with the resolved `train.yaml`, named `<name>-<job id>`.

    Returns
    -------
    int
        The run's exit code.
    """
    count = settings.slurm.nodes + settings.slurm.spares
    nodes = tuple(f"n{number}" for number in range(1, count + 1))
    (run_folder / "logs").mkdir(mode=0o700, exist_ok=True)
    make_keys(run_folder)
    job_id = run_folder.name.removeprefix(f"{settings.name}-")
    write_allocation(
        run_folder,
        Allocation(job_id, nodes, active=settings.slurm.nodes, slots=settings.slurm.ranks_per_node),
    )
    agents: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for agent in agents:
            agent.send_signal(signal.SIGTERM)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    try:
        for node in nodes:
            agents.append(
                subprocess.Popen(
                    [sys.executable, "-m", "unicron_hpc.supervisor.agent", str(run_folder)],
                    stdin=subprocess.DEVNULL,
                    env={**clean, NODE_VARIABLE: node},
                    # A terminal's Ctrl-C reaches us; we pass it on once, in order.
                    start_new_session=True,
                )
            )
        while read_outcome(run_folder) is None and any(agent.poll() is None for agent in agents):
            time.sleep(LOOK_INTERVAL)
    finally:
        deadline = time.monotonic() + LEAVE_GRACE
        for agent in agents:
            try:
                agent.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)
    outcome = read_outcome(run_folder)
    if outcome is None:
        cause = f"all agents ended before the run was over; see logs/ in {run_folder}"
        write_summary(run_folder, state="failed", exit_code=1, cause=cause, started=time.time())
        print(f"unicron: FAILED: {cause}", file=sys.stderr)
        return 1
    return outcome.exit_code

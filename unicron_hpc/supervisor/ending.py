"""Ends a Slurm job whose batch node is gone: nobody else will."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def end_orphaned_job(job_id: str, exit_code: int) -> None:
    """Have Slurm end the job with `exit_code`."""
    from unicron_hpc.slurm.complete import complete_job  # finds libslurm; needed only in this case

    log.info("ending job %s, whose batch node is lost: %s", job_id, complete_job(job_id, exit_code))

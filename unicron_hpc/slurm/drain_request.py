"""A request to drain a node, left for the site's helper where Slurm refuses to drain it for us.

What the helper believes of it is the node, the job, and whose file it is; the rest it asks Slurm.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

#: The site's folder for requests: a folder like /tmp, in which everybody may leave files of his own.
SPOOL = "UNICRON_DRAIN_REQUESTS"
#: The folder for requests in a run folder, where the site has none.
FOLDER = "drain-requests"


def leave(
    run_folder: Path, node: str, job_id: str, kind: str, environment: Mapping[str, str] = os.environ
) -> Path:
    """Leave a request; one for the same node and job that is still there is enough.

    Parameters
    ----------
    run_folder
        Where it goes when the site names no folder, or that cannot be written to.
    kind
        The error for which the node is to be drained.

    Returns
    -------
    Path
        The request's file.

    Raises
    ------
    OSError
        When it cannot be written anywhere.
    """
    text = json.dumps({"node": node, "job_id": job_id, "kind": kind, "time": time.time()}) + "\n"
    name = f"{job_id}-{node}.json"
    spool = environment.get(SPOOL, "")
    if spool:
        try:
            return _write(Path(spool) / name, text, 0o644)
        except OSError as error:
            log.warning("no request can be left in %s (%s): %s", spool, SPOOL, error.strerror)
    folder = run_folder / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return _write(folder / name, text, 0o600)


def _write(path: Path, text: str, mode: int) -> Path:
    # In a folder that everybody can write to, what is there already may be somebody else's trap.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, mode)
    except FileExistsError:
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            return path
        path = path.with_name(f"{path.stem}-{secrets.token_hex(4)}.json")
        descriptor = os.open(path, flags, mode)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        os.fchmod(descriptor, mode)
    return path

"""The job's CURVE key pair: made once, kept in the run folder, readable by the owner only."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import zmq

from unicron_hpc.errors import UnicronError

KEY_FILE = "control.key"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """Both halves of the job's key pair, Z85 text. Whoever has them is the job's owner."""

    public: bytes
    secret: bytes


def make_keys(run_folder: Path) -> JobKeys:
    """Make the job's keys and write them to the run folder with mode 0600.

    A second call returns the keys of the first: a restarted batch process must not lock its agents out.
    """
    path = run_folder / KEY_FILE
    public, secret = zmq.curve_keypair()
    text = json.dumps({"public": public.decode(), "secret": secret.decode()})
    # A name of its own each time (and 0600): process numbers repeat across containers and restarts.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{KEY_FILE}.", dir=run_folder)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
    return read_keys(run_folder)


def read_keys(run_folder: Path) -> JobKeys:
    """The job's keys.

    Raises
    ------
    UnicronError
        When the file is missing, unreadable, or readable by others than its owner.
    """
    path = run_folder / KEY_FILE
    try:
        status = path.stat()
        content = json.loads(path.read_text())
        keys = JobKeys(content["public"].encode(), content["secret"].encode())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnicronError(
            f"cannot read the job's keys: {error}", where=str(path), hint="Is this the job's run folder?"
        ) from error
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise UnicronError(
            "the job's keys are readable by others or belong to somebody else",
            where=str(path),
            hint="Nobody but the job's owner may have them: `chmod 600` the file and submit again.",
        )
    return keys

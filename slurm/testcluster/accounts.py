"""Temporary system accounts, so that jobs of a cluster started by root run as somebody without privileges."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from testcluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this machine."""

    name: str
    uid: int
    gid: int
    home: Path


def current() -> Account:
    """Return the account that this process runs as."""
    entry = pwd.getpwuid(os.geteuid())
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def find(name: str) -> Account | None:
    """Return the account `name`, or None."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def _run(command: list[str]) -> None:
    """Run an account tool, again for a while when another one holds the lock on /etc/passwd."""
    for attempt in range(20):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            return
        if "lock" not in done.stderr:
            break
        time.sleep(0.1 * (attempt + 1))
    raise ClusterError(done.stderr.strip() or f"exit code {done.returncode}", where=" ".join(command))


def _comment(name: str) -> str:
    return f"temporary account of test cluster {name}"


def create(account: str, cluster: str, home: Path) -> Account:
    """Create a system account without password, or take the one that an earlier crashed `up` left."""
    try:
        entry = pwd.getpwnam(account)
    except KeyError:
        entry = None
    if entry is not None:
        if entry.pw_gecos != _comment(cluster):
            hint = "Choose another --name."
            raise ClusterError(f"an account {account} exists and is not ours", hint=hint)
        if entry.pw_dir != str(home):
            _run(["/usr/sbin/usermod", "--home", str(home), account])
    else:
        _run(
            [
                "/usr/sbin/useradd",
                "--system",
                "--user-group",
                "--no-create-home",
                "--home-dir",
                str(home),
                "--shell",
                "/bin/bash",
                "--comment",
                _comment(cluster),
                account,
            ]
        )
    entry = pwd.getpwnam(account)
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    return Account(account, entry.pw_uid, entry.pw_gid, home)


def is_ours(account: str, cluster: str) -> bool:
    """Tell whether `create` made this account for this cluster."""
    try:
        return pwd.getpwnam(account).pw_gecos == _comment(cluster)
    except KeyError:
        return False


def delete(account: str, cluster: str) -> None:
    """Delete an account that `create` made for this cluster; leave any other alone."""
    if is_ours(account, cluster):
        _run(["/usr/sbin/userdel", account])


def become(account: Account) -> None:
    """Turn this process, which must be root's, into one of `account`, for good."""
    os.setgroups([])
    os.setgid(account.gid)
    os.setuid(account.uid)

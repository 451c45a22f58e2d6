"""The few system calls that Python 3.11 does not wrap: mount namespaces, bind mounts, the child subreaper."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def become_subreaper() -> None:
    """Make orphans among this process's descendants its own children instead of init's."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def set_process_name(name: str) -> None:
    """Set the name shown by ps, at most 15 bytes."""
    _check(_libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0), "prctl(PR_SET_NAME)")


def new_private_mount_namespace() -> None:
    """Leave the shared mount namespace; mounts made from now on are seen by this process's family only."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "making / private")


def enter_mount_namespace(pid: int) -> None:
    """Join the mount namespace of process `pid`; the working folder becomes /."""
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    try:
        _check(_libc.setns(descriptor, CLONE_NEWNS), f"setns to the mounts of process {pid}")
    finally:
        os.close(descriptor)


def mount_tmpfs(target: str) -> None:
    """Cover `target` with a small empty file system that everybody may traverse."""
    _check(
        _libc.mount(b"tmpfs", target.encode(), b"tmpfs", 0, b"mode=0755,size=4m"), f"mount tmpfs on {target}"
    )


def bind_mount(source: str, target: str) -> None:
    """Show `source` (and what is mounted below it) at `target` too."""
    flags = _MS_BIND | _MS_REC
    _check(_libc.mount(source.encode(), target.encode(), None, flags, None), f"bind {source} on {target}")

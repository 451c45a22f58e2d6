"""Whether a rank was killed for want of memory: the kernel's counters, and what its log says.

The kernel counts a kill before it sends the signal (mm/oom_kill.c, `__oom_kill_process`), so whoever sees the
death finds the counter raised. Three places count: `memory.events.local` of a cgroup of version 2, the line
`oom_kill` in `memory.oom_control` of version 1, and `/proc/vmstat` for the whole machine, which also counts
what belongs to others and is read only where there is no cgroup to read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

#: How far back the count is compared, in seconds: the time from a kill to our look at the counter.
WINDOW = 3.0
#: Processes that the kernel's log named, remembered until their end is seen.
REMEMBERED = 64


class MemoryKills:
    """Counts of processes killed for want of memory where this node's ranks run.

    Parameters
    ----------
    counter
        File with a line `oom_kill N`; None where nothing counts.
    clock
        Monotonic seconds.
    """

    def __init__(self, counter: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter = counter
        self._clock = clock
        self._explained = 0
        self._told: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)
        self._seen: deque[tuple[float, int]] = deque()
        self.look()

    def look(self) -> None:
        """Note the count; call it now and then, so that an old kill explains no new death."""
        now, count = self._clock(), self._read()
        self._seen.append((now, count))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()

    def kernel_said(self, pid: int, record: str) -> None:
        """The kernel's log names a process that it has killed."""
        self._told.append((pid, record))

    def evidence(self, pid: int) -> str:
        """How we know that this process, which was just ended by SIGKILL, was killed for want of memory.

        One count explains one death.

        Returns
        -------
        str
            Empty when nothing says so.
        """
        for told, record in self._told:
            if told == pid:
                return f"kernel log: {record}"
        before, count = max(self._seen[0][1], self._explained), self._read()
        if count <= before:
            return ""
        self._explained = before + 1
        return f"{self._counter} counts {count - before} more process(es) killed for want of memory"

    def _read(self) -> int:
        if self._counter is None:
            return 0
        try:
            content = self._counter.read_text()
        except OSError:
            return 0
        for line in content.splitlines():
            word, _, number = line.partition(" ")
            if word == "oom_kill" and number.strip().isdecimal():
                return int(number)
        return 0


def counter_file(proc: Path = Path("/proc")) -> Path | None:
    """The file that counts kills in the cgroup of this process and its children; None without any.

    Parameters
    ----------
    proc
        Where procfs is mounted.
    """
    try:
        groups = (proc / "self" / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    candidates: list[Path] = []
    for line in groups:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            folders = _folders(mounts, "cgroup", "memory", path)
            candidates += [folder / "memory.oom_control" for folder in folders]
        elif not controllers:
            folders = _folders(mounts, "cgroup2", "", path)
            candidates += [f / name for f in folders for name in ("memory.events.local", "memory.events")]
    return next((file for file in [*candidates, proc / "vmstat"] if _counts(file)), None)


def _folders(mounts: list[str], kind: str, option: str, path: str) -> list[Path]:
    """Where a cgroup may be mounted; in a container the mount shows only a part of the tree."""
    folders = []
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        fields, after = left.split(), right.split()
        if len(fields) < 5 or len(after) < 3 or after[0] != kind:
            continue
        if option and option not in after[2].split(","):
            continue
        root, point = fields[3].rstrip("/"), Path(fields[4])
        inside = path[len(root) :] if path == root or path.startswith(root + "/") else path
        folders += [point / inside.lstrip("/"), point]
    return folders


def _counts(file: Path) -> bool:
    try:
        return any(line.startswith("oom_kill ") for line in file.read_text().splitlines())
    except OSError:
        return False

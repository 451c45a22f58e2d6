"""Running a command in a container as if it ran here: streams, exit code, and signals, which docker omits."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from testcluster import packages
from testcluster.engine import Docker

#: The shell writes its pid and becomes the command; a folder that is not in the container means home.
_SCRIPT = 'echo $$ >"$1"; cd "$2" 2>/dev/null || cd; shift 2; exec "$@"'
_KILL = 'kill -s "$1" "$(cat "$2")"'


def run(
    docker: Docker, container: str, command: Sequence[str], user: str, environment: Mapping[str, str]
) -> int:
    """Run `command` in `container` as `user` with these variables, and return its exit code."""
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    pid_file = f"/tmp/exec-{secrets.token_hex(8)}"
    options = ["exec", "--interactive", *(["--tty"] if terminal else []), "--user", user]
    for key, value in environment.items():
        options += ["--env", f"{key}={value}"]
    arguments = [*options, container, "sh", "-c", _SCRIPT, "sh", pid_file, os.getcwd(), *command]

    def forward(number: int, _frame: FrameType | None) -> None:
        docker.try_run(["exec", container, "sh", "-c", _KILL, "sh", str(number), pid_file])

    numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    if not terminal:
        numbers.append(signal.SIGINT)  # with a terminal the key press goes through it
    for number in numbers:
        signal.signal(number, forward)
    child = subprocess.Popen(
        [packages.program("docker"), *arguments], env=docker.environment, start_new_session=not terminal
    )
    try:
        return child.wait()
    finally:
        docker.try_run(["exec", container, "rm", "-f", pid_file])

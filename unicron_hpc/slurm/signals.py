"""Slurm's `--signal` option: `[{R|B}:]<signal>[@<seconds>]`."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from unicron_hpc.errors import ConfigError

#: man sbatch: "If a sig_num is specified without any sig_time, the default time will be 60 seconds."
DEFAULT_SECONDS = 60
#: man sbatch: "sig_time must have an integer value between 0 and 65535."
MOST_SECONDS = 65535

_SPEC = re.compile(r"(?:(?P<flags>[RB]{1,2}):)?(?P<signal>[A-Za-z0-9]+)(?:@(?P<seconds>\d+))?", re.ASCII)
#: The first two cannot be handled, and the third comes whenever a child ends.
_NO_HANDLER = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """A signal that Slurm sends before the time limit.

    Attributes
    ----------
    signal
        The signal.
    seconds
        How long before the end of the job.
    batch_only
        Whether only the batch script gets it (`B:`); the job's steps otherwise.
    """

    signal: signal.Signals
    seconds: int
    batch_only: bool


def parse_signal(text: str) -> SignalSpec:
    """Read a `--signal` value.

    Raises
    ------
    ConfigError
        When Slurm would not take it, or nothing can be done at that signal.
    """
    match = _SPEC.fullmatch(text.strip())
    hint = "write e.g. USR2@120 or B:USR2@120"
    if match is None:
        raise ConfigError(f"{text!r} is not a signal specification", hint=hint)
    seconds = int(match["seconds"] or DEFAULT_SECONDS)
    if seconds > MOST_SECONDS:
        raise ConfigError(f"{text!r}: the time must be 0 to {MOST_SECONDS} seconds", hint=hint)
    found = _signal_named(match["signal"], text)
    if found in _NO_HANDLER:
        raise ConfigError(
            f"{text!r}: a run cannot end in order at {found.name}", hint="choose one that can, e.g. USR2@120"
        )
    return SignalSpec(found, seconds, "B" in (match["flags"] or ""))


def stopping(spec: str | None) -> frozenset[signal.Signals]:
    """Signals by which Slurm or the user asks a process of the job to end.

    Parameters
    ----------
    spec
        The job's `--signal`, so that the user's choice means an orderly end and not sudden death.
    """
    own = {parse_signal(spec).signal} if spec else set()
    return frozenset({signal.SIGTERM, signal.SIGINT} | own)


def _signal_named(word: str, text: str) -> signal.Signals:
    name = word.upper()
    try:
        if name.isdecimal():
            return signal.Signals(int(name))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        raise ConfigError(f"{text!r}: no signal is called {word!r}", hint="e.g. USR2, TERM or 10") from None

"""Slurm's notation for lengths of time, as in `--time` and in squeue's TIME_LEFT.

Forms (man sbatch): minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
days-hours:minutes:seconds; `UNLIMITED`, `INFINITE` and `-1` for no limit.
"""

from __future__ import annotations

import re

from unicron_hpc.errors import ConfigError

_FORMS = (
    "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes "
    "or days-hours:minutes:seconds"
)
_UNLIMITED = frozenset({"-1", "UNLIMITED", "INFINITE"})
_WITH_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+)(?::(\d+))?)?", re.ASCII)
_WITHOUT_DAYS = re.compile(r"(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
#: What squeue and scontrol print where there is no figure.
_NO_FIGURE = frozenset({"", "INVALID", "NOT_SET", "N/A", "NONE"})
#: Slurm keeps limits as 32-bit minutes; beyond that a limit cannot be meant.
_MOST_SECONDS = 0xFFFFFFFD * 60


def parse_time(text: str) -> int | None:
    """Seconds that `text` stands for, or None for no limit.

    Raises
    ------
    ConfigError
        When Slurm would not take it, or would take it for a negative time.
    """
    word = text.strip()
    if word.upper() in _UNLIMITED:
        return None
    if re.match(r"-\d", word):
        raise ConfigError(f"negative time {text!r}", hint="write UNLIMITED for no limit")
    if match := _WITH_DAYS.fullmatch(word):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    elif match := _WITHOUT_DAYS.fullmatch(word):
        parts = [int(part) for part in match.groups() if part is not None]
        days = 0
        match len(parts):
            case 1:
                hours, minutes, seconds = 0, parts[0], 0
            case 2:
                hours, minutes, seconds = 0, parts[0], parts[1]
            case _:
                hours, minutes, seconds = parts
    else:
        raise ConfigError(f"{text!r} is not a Slurm time", hint=f"write {_FORMS}, e.g. 1-12:00:00")
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total > _MOST_SECONDS:
        raise ConfigError(f"time {text!r} is longer than Slurm can hold", hint="write UNLIMITED for no limit")
    return total


def parse_time_left(text: str) -> int | None:
    """Seconds in a figure that Slurm printed; None where it prints none (`INVALID`, `UNLIMITED`, ...).

    Never raises: what cannot be read is no figure.
    """
    if text.strip().upper() in _NO_FIGURE:
        return None
    try:
        return parse_time(text)
    except ConfigError:
        return None


def format_time(seconds: int) -> str:
    """`seconds` in the form that Slurm prints: `[days-]hours:minutes:seconds`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{days}-{clock}" if days else clock

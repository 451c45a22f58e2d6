"""Slurm's filename patterns (`%x-%j.out`), as in `--output`; man sbatch, "filename pattern"."""

from __future__ import annotations

import re

from unicron_hpc.errors import ConfigError

_SPECIFIER = re.compile(r"%(\d*)([%a-zA-Z])", re.ASCII)
#: Specifiers that are padded with zeros to the width given.
_PADDED = frozenset("aAjJnst")


def expand_pattern(pattern: str, values: dict[str, str]) -> str:
    """The file name that Slurm makes of a pattern.

    Parameters
    ----------
    pattern
        E.g. `%x-%j.out`; a backslash anywhere turns expansion off and is dropped.
    values
        Text of each specifier by its letter: `j` job id, `x` job name, `N` node, `r` restarts, `t` task, ...

    Specifiers without a value stay as they are.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def value_of(match: re.Match[str]) -> str:
        width, letter = match.groups()
        if letter == "%":
            return "%"
        if letter not in values:
            return match.group(0)
        # man sbatch: more than 10 digits of padding are cut to 10.
        return values[letter].zfill(min(int(width or 0), 10)) if letter in _PADDED else values[letter]

    return _SPECIFIER.sub(value_of, pattern)


def literal(path: str) -> str:
    """`path` as the part of a pattern that stands for itself.

    Raises
    ------
    ConfigError
        When it has a backslash, which would turn expansion off.
    """
    if "\\" in path:
        raise ConfigError(
            f"{path!r} has a backslash, which Slurm's file names cannot have", hint="use another folder"
        )
    return path.replace("%", "%%")

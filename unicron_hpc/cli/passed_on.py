"""Options on unicron-sbatch's command line that are sbatch's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from unicron_hpc.config import Override, SlurmSettings
from unicron_hpc.config.fields import is_flag
from unicron_hpc.errors import ConfigError

_LONG = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is left of the command line once our own options are taken.

    Attributes
    ----------
    file
        The train.yaml.
    overrides
        Options of sbatch that settings know; they are checked like settings and win over the file.
    passed_on
        Others, which go to sbatch as they are (a newer Slurm's).
    """

    file: str
    overrides: tuple[Override, ...]
    passed_on: tuple[str, ...]


def sort_out(words: Sequence[str]) -> Arguments:
    """Tell the file from sbatch's options.

    Raises
    ------
    ConfigError
        When there is not exactly one file, or an option has no form that can be passed on.
    """
    files: list[str] = []
    overrides: list[Override] = []
    passed_on: list[str] = []
    for word in words:
        if not word.startswith("-") or word == "-":
            files.append(word)
            continue
        match = _LONG.fullmatch(word)
        if match is None:
            raise ConfigError(
                f"unknown option {word}", hint="sbatch's options need their long names: --name=value"
            )
        key = match[1].replace("-", "_")
        if key in SlurmSettings.REFUSED:
            raise ConfigError(f"{word} cannot be given: {SlurmSettings.REFUSED[key]}")
        if key in SlurmSettings.model_fields:
            overrides.append(Override(word, ("slurm", key), _value(word, key, match[2])))
        else:
            passed_on.append(word)
    if len(files) != 1:
        if not files:
            raise ConfigError("no train.yaml given", hint="e.g. unicron-sbatch train.yaml; --help shows more")
        raise ConfigError(
            f"expected one train.yaml, found {' '.join(files)}",
            hint="sbatch's options need an equals sign: --time=30:00",
        )
    return Arguments(files[0], tuple(overrides), tuple(passed_on))


def _value(word: str, key: str, text: str | None) -> str:
    if text is not None:
        return text
    if is_flag(SlurmSettings, key) or key == "exclusive":
        return "true"
    raise ConfigError(f"{word} needs a value", hint=f"write {word}=VALUE")

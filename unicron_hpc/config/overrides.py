"""`--set a.b=c`: single settings changed on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unicron_hpc.config.problems import Problem, SettingsError
from unicron_hpc.config.raw import Items, Place, Raw, Scalar, Table, parse_value


@dataclass(frozen=True, slots=True)
class Override:
    """A setting changed by something other than `--set`, e.g. sbatch's own `--time=5:00`.

    Attributes
    ----------
    source
        What the user wrote, for messages.
    path
        Names of the setting from the outside in.
    text
        The value, taken literally.
    """

    source: str
    path: tuple[str, ...]
    text: str


def apply_overrides(table: Table, overrides: Sequence[str | Override]) -> None:
    """Change `table` in place by every `key.key=value`; the last of two for the same key wins.

    List items are named by their number (`tasks.0.weight=2`), values are YAML (`slurm.exclude=[n1, n2]`).

    Raises
    ------
    SettingsError
        When an override has no `=`, an empty key or leads through something that has no such part.
    """
    problems: list[Problem] = []
    for override in overrides:
        if isinstance(override, Override):
            value = Scalar(override.text, Place(override.source))
            _put(table, list(override.path), value, override.source)
            continue
        source = f"--set {override}"
        name, equals, text = override.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            problems.append(Problem(source, "is not of the form key.key=value", "e.g. --set train.lr=3e-4"))
            continue
        try:
            _put(table, path, parse_value(text, source), source)
        except SettingsError as error:
            problems.extend(error.problems)
    if problems:
        raise SettingsError(problems)


def _put(table: Table, path: list[str], value: Raw, source: str) -> None:
    here: Raw = table
    place = Place(source)
    for depth, step in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(here, Table):
            if last:
                here.values[step] = value
                here.keys[step] = place
                return
            below = here.values.get(step)
            if below is None or (isinstance(below, Scalar) and below.text is None):
                below = here.values[step] = Table({}, place)
                here.keys.setdefault(step, place)
            here = below
        elif isinstance(here, Items):
            if not step.isdecimal() or int(step) >= len(here.items):
                name = ".".join(path[:depth])
                raise SettingsError(
                    [Problem(source, f"{name} has {len(here.items)} items, numbered from 0; no {step!r}")]
                )
            if last:
                here.items[int(step)] = value
                return
            here = here.items[int(step)]
        else:
            name = ".".join(path[:depth])
            raise SettingsError([Problem(source, f"{name} is a single value, it has no part {step!r}")])

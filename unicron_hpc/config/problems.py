"""Problems found in the user's settings, each with its place, collected so that all are shown at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unicron_hpc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in the input.

    Attributes
    ----------
    where
        `file:line:column`, or the `--set` that caused it.
    message
        What is wrong, with the key's full name (`model.hidden_size: ...`) where there is one.
    hint
        What to write instead; empty where nothing sensible can be said.
    """

    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  {self.hint}" if self.hint else head


class SettingsError(ConfigError):
    """The settings are wrong; carries every problem found, in the order of the file.

    Parameters
    ----------
    problems
        At least one.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(dict.fromkeys(problems))
        first = self.problems[0]
        if len(self.problems) == 1:
            super().__init__(first.message, where=first.where, hint=first.hint)
        else:
            lines = "\n".join(str(problem) for problem in self.problems)
            super().__init__(f"{lines}\n{len(self.problems)} problems in the settings")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The known word closest to `word`, or an empty string when none is close."""
    plain = word.strip().lower().lstrip("-").replace("-", "_")
    if plain in known:
        return plain
    close = difflib.get_close_matches(plain, known, n=1, cutoff=0.6)
    return close[0] if close else ""

"""The reason that Slurm keeps with a drained node: a template, filled in, as one printable line."""

from __future__ import annotations

import re
import string
import time
from collections.abc import Mapping

from unicron_hpc.errors import ConfigError

#: What a template may name.
VARIABLES = ("kind", "job", "time", "node", "rank")
#: Longest reason, in characters: what `sinfo -R` and people can still take in.
LONGEST = 200
#: Longest value of a variable: a long one must not push the others out.
_LONGEST_VALUE = 80


def check_template(template: str) -> str:
    """A template that can be filled in.

    Raises
    ------
    ConfigError
        When it names something else than `VARIABLES`, or its braces do not match.
    """
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"{template!r} cannot be filled in: {error}", hint="write {{ for a brace") from None
    for _, name, form, conversion in fields:
        if name is not None and (name not in VARIABLES or form or conversion):
            known = ", ".join(f"{{{variable}}}" for variable in VARIABLES)
            raise ConfigError(f"{{{name}}} is no variable of a drain reason", hint=f"there are {known}")
    if not printable(template):
        raise ConfigError("a drain reason needs words", hint="Slurm takes no empty one")
    return template


def fill(template: str, values: Mapping[str, str]) -> str:
    """The reason for one node.

    Parameters
    ----------
    template
        As checked.
    values
        Text for its variables; what is missing is a dash.

    Returns
    -------
    str
        One line of printable ASCII without quotes, backslashes or what a shell would act on; never empty.
    """
    known = {name: printable(values.get(name, ""))[:_LONGEST_VALUE].rstrip() or "-" for name in VARIABLES}
    return printable(template.format_map(known))[:LONGEST].rstrip() or "unicron: cause not known"


def printable(text: str) -> str:
    """The printable ASCII of a text on one line, without quotes and what a shell would act on."""
    plain = re.sub(r"[^\x20-\x7e]+", " ", text)
    return " ".join(re.sub(r"[\"'`\\|;$<>&=]", "", plain).split())


def clock(when: float) -> str:
    """A unix time for people, in the node's own time zone as Slurm's commands have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(when))

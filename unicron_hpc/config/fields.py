"""Types of settings: what a text in train.yaml must look like, and what it becomes.

Every validator gets the text as written (`raw.PlainText` where it had no quotes) and raises `FieldError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from unicron_hpc.config.raw import PlainText
from unicron_hpc.errors import ConfigError
from unicron_hpc.slurm import drain_reasons, hostlists, signals, times


class Frozen(BaseModel):
    """A section of the settings: frozen, and without keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Context:
    """What paths are relative to, and whether `$VAR` and `~` are expanded.

    Attributes
    ----------
    inputs
        Folder that relative paths of files to read start from: the one of train.yaml.
    outputs
        Folder that relative paths of files to write start from: the current one.
    expand
        False for settings that were resolved before.
    """

    inputs: Path
    outputs: Path
    expand: bool = True


# YAML 1.1 reads these plain words as true, false or an octal number; who writes them where text is wanted
# may mean either.
_BOOLEAN_WORDS = frozenset({"yes", "no", "on", "off", "true", "false"})
_OCTAL = re.compile(r"0[0-7]+|0x[0-9a-fA-F]+|0o[0-7]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FieldError(ValueError):
    """A value that its setting does not take: what is wrong, and what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def reads_as_other_than_text(word: str) -> bool:
    """Whether a plain `word` is refused where text is wanted, since YAML 1.1 reads something else."""
    return word.lower() in _BOOLEAN_WORDS or _OCTAL.fullmatch(word) is not None


def _text(value: Any) -> Any:
    if isinstance(value, PlainText):
        if value.lower() in _BOOLEAN_WORDS:
            raise FieldError(
                f"expected text, found {value}, which YAML takes for true or false",
                f'write "{value}" in quotes if text is meant',
            )
        if _OCTAL.fullmatch(value):
            raise FieldError(
                f"expected text, found the number {value}, which YAML takes for octal or hexadecimal",
                f'write "{value}" in quotes',
            )
    if isinstance(value, str):
        value = str(value)
        if _CONTROL.search(value):
            raise FieldError("text with a line break or another control character", "write it on one line")
        if not value.strip():
            raise FieldError("expected text, found nothing", "write a value or leave the key out")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value, re.ASCII):
        raise FieldError(
            f"{value!r} cannot be a name: it becomes part of file names",
            "use letters, digits, `.`, `_` and `-`, at most 64, starting with a letter or digit",
        )
    return value


_VARIABLE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\}|)", re.ASCII)


def expand_path(text: str) -> str:
    """Expand `$VAR`, `${VAR}` and a leading `~`; `$$` is a dollar sign.

    Raises
    ------
    ValueError
        For a variable that is not set, a lone `$` or an unknown user.
    """

    def value_of(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        name = match[2] or match[3]
        if not name:
            raise FieldError(f"a lone `$` in {text!r}", "write $NAME, ${NAME}, or $$ for a dollar sign")
        if not os.environ.get(name):
            raise FieldError(
                f"environment variable {name} is not set",
                f"set {name} before submitting, or write the path out",
            )
        return os.environ[name]

    expanded = _VARIABLE.sub(value_of, text)
    if text.startswith("~"):
        expanded = os.path.expanduser(expanded)
        if expanded.startswith("~"):
            raise FieldError(f"no home folder found for {text!r}", "write the path out")
    return expanded


def _path(value: Any, info: ValidationInfo, *, output: bool) -> Any:
    if isinstance(value, str):
        text = str(value)
        if _CONTROL.search(text) or not text.strip():
            raise FieldError("expected a path", "write a path without line breaks")
        context = (
            info.context if isinstance(info.context, Context) else Context(Path.cwd(), Path.cwd(), False)
        )
        if context.expand:
            text = expand_path(text)
        value = Path(os.path.normpath((context.outputs if output else context.inputs) / text))
    return value


def _input_path(value: Any, info: ValidationInfo) -> Any:
    return _path(value, info, output=False)


def _output_path(value: Any, info: ValidationInfo) -> Any:
    return _path(value, info, output=True)


def _program(value: Any, info: ValidationInfo) -> Any:
    """A bare name is looked up in the job's PATH; anything else is a path."""
    if isinstance(value, str) and "/" not in value and "$" not in value and not value.startswith("~"):
        return _text(value)
    path = _input_path(value, info)
    return str(path) if isinstance(path, Path) else path


def _checked_by(parser: Callable[[str], object]) -> Callable[[str], str]:
    """A validator that keeps the text when `parser` accepts it."""

    def check(value: str) -> str:
        try:
            parser(value)
        except ConfigError as error:
            raise FieldError(error.message, error.hint) from error
        return value

    return check


def _hosts(value: Any) -> Any:
    if isinstance(value, list | tuple):
        if not all(isinstance(item, str) for item in value):
            raise FieldError("expected node names", "write n[1-3],login or [n1, n2]")
        return ",".join(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise FieldError(f"expected a number, found {str(value).lower()}")
    return value


def _auto(value: Any) -> Any:
    """The word `auto` is as good as leaving the key out."""
    return None if isinstance(value, str) and value.strip().lower() == "auto" else value


def _lines(value: Any) -> Any:
    """Shell lines: a list of texts, or one block of text."""
    if isinstance(value, str):
        return tuple(str(value).rstrip("\n").split("\n"))
    if isinstance(value, list | tuple):
        lines: list[Any] = []
        for item in value:
            lines.extend(str(item).rstrip("\n").split("\n") if isinstance(item, str) else [item])
        return tuple(lines)
    return value


#: One line of text.
Text = Annotated[str, BeforeValidator(_text)]
#: Text that becomes part of a file name.
Name = Annotated[str, BeforeValidator(_text), AfterValidator(_name)]
#: A file or folder that is read; relative to the folder of train.yaml.
InputPath = Annotated[Path, BeforeValidator(_input_path)]
#: A file or folder that is written; relative to the current folder.
OutputPath = Annotated[Path, BeforeValidator(_output_path)]
#: A program: a bare name, or a path like `InputPath`.
Program = Annotated[str, BeforeValidator(_program)]
#: A Slurm time limit, kept as written.
SlurmTime = Annotated[str, BeforeValidator(_text), AfterValidator(_checked_by(times.parse_time))]
#: A Slurm `--signal` value, kept as written.
SlurmSignal = Annotated[str, BeforeValidator(_text), AfterValidator(_checked_by(signals.parse_signal))]
#: The template of a reason that Slurm keeps with a node.
DrainReason = Annotated[
    str, BeforeValidator(_text), AfterValidator(_checked_by(drain_reasons.check_template))
]
#: A hostlist, written as one or as a list of names.
Hosts = Annotated[
    str, BeforeValidator(_text), BeforeValidator(_hosts), AfterValidator(_checked_by(hostlists.expand))
]
#: Shell lines, kept verbatim.
ShellLines = Annotated[tuple[str, ...], BeforeValidator(_lines)]
#: A whole number of at least 1.
Count = Annotated[int, BeforeValidator(_number), Field(ge=1)]
#: A whole number of at least 0.
CountOrZero = Annotated[int, BeforeValidator(_number), Field(ge=0)]
#: A whole number of at least 1, or None where the planner is to choose.
Chosen = Annotated[Annotated[int, BeforeValidator(_number), Field(ge=1)] | None, BeforeValidator(_auto)]
#: A number above 0.
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0)]
#: A number of at least 0.
NotNegative = Annotated[float, BeforeValidator(_number), Field(ge=0)]
#: A number from 0 to below 1.
Fraction = Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)]


def is_flag(section: type[BaseModel], key: str) -> bool:
    """Whether the setting `key` is true or false."""
    return section.model_fields[key].annotation in {bool, bool | None}

"""pydantic's validation errors in words for people who write train.yaml, each at its place in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from unicron_hpc.config import sections
from unicron_hpc.config.fields import Context, FieldError
from unicron_hpc.config.problems import Problem, did_you_mean
from unicron_hpc.config.raw import Raw, Table, data_of, key_place_of, place_of
from unicron_hpc.config.slurm_settings import SlurmSettings

Model = TypeVar("Model", bound=BaseModel)

#: Where each key belongs, to help with keys in the wrong section.
SECTIONS: Mapping[str, type[BaseModel]] = {
    "slurm": SlurmSettings,
    "model": sections.ModelSettings,
    "train": sections.TrainSettings,
    "data": sections.DataSettings,
    "checkpoint": sections.CheckpointSettings,
    "recovery": sections.RecoverySettings,
}


def validated(
    model: type[Model], raw: Table, prefix: str, context: Context, problems: list[Problem]
) -> Model | None:
    """`raw` as a `model`; None with the problems added when it is none.

    Parameters
    ----------
    prefix
        Name of the section, put before every key in messages.
    """
    try:
        return model.model_validate(data_of(raw), context=context)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            problems.extend(_problem(model, raw, prefix, detail))
        return None


def _problem(model: type[BaseModel], raw: Raw, prefix: str, detail: ErrorDetails) -> Iterator[Problem]:
    path = detail["loc"]
    name = ".".join(part for part in (prefix, *map(str, path)) if part)
    kind, value = detail["type"], detail["input"]
    if kind == "default_factory_not_called":
        return
    if kind == "missing":
        yield Problem(str(place_of(raw, path)), f"{name} is missing", f"add `{path[-1]}:` under `{prefix}:`")
    elif kind == "extra_forbidden":
        yield Problem(
            str(key_place_of(raw, path)),
            f"{name}: unknown key",
            unknown_key_hint(str(path[-1]), model, prefix),
        )
    else:
        message, hint = _words(kind, value, detail)
        yield Problem(str(place_of(raw, path)), f"{name}: {message}", hint)


def unknown_key_hint(key: str, model: type[BaseModel], section: str) -> str:
    """What to write instead of an unknown `key` of `section`."""
    known = list(model.model_fields)
    if section == "slurm" and key.replace("-", "_") in SlurmSettings.REFUSED:
        return f"cannot be given: {SlurmSettings.REFUSED[key.replace('-', '_')]}"
    plain = key.strip().lstrip("-").replace("-", "_")
    homes = [name for name, other in SECTIONS.items() if plain in other.model_fields and name != section]
    if plain not in known and homes:
        return f"`{plain}` belongs under `{homes[0]}:`"
    close = did_you_mean(key, known)
    if close:
        return f"did you mean `{close}`?"
    if section == "slurm":
        return "no long option of sbatch is called so (write `_` for `-`)"
    return f"known here: {', '.join(known)}" if len(known) <= 12 else "docs/config.md lists the known keys"


def _words(kind: str, value: Any, detail: ErrorDetails) -> tuple[str, str]:
    context = detail.get("ctx", {})
    shown = repr(str(value)) if isinstance(value, str) else _kind_of(value)
    if isinstance(error := context.get("error"), FieldError):
        return str(error), error.hint
    if value is None:
        return "has no value", "write one, or leave the key out"
    match kind:
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return f"expected a whole number, found {shown}", _whole_number_hint(value)
        case "float_parsing" | "float_type" | "finite_number":
            return f"expected a number, found {shown}", "write e.g. 0.1 or 1.5e-4"
        case "bool_parsing" | "bool_type":
            return f"expected true or false, found {shown}", "write true or false"
        case "string_type":
            hint = (
                "put text that contains `: ` in quotes" if isinstance(value, dict) else "write a single value"
            )
            return f"expected text, found {shown}", hint
        case "tuple_type":
            return f"expected a list, found {shown}", "write [a, b] or one `- item` a line"
        case "literal_error":
            return f"expected {context.get('expected', '')}, found {shown}", _literal_hint(str(value), detail)
        case "greater_than":
            return f"must be above {_plain(context['gt'])}, found {value}", ""
        case "greater_than_equal":
            return f"must be at least {_plain(context['ge'])}, found {value}", ""
        case "less_than":
            return f"must be below {_plain(context['lt'])}, found {value}", ""
        case _:
            return f"{detail['msg']}, found {shown}", ""


def _kind_of(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else str(value)


def _plain(number: Any) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _whole_number_hint(value: Any) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "write digits only"
    return f"write {int(number)}" if number == number // 1 and abs(number) < 1e15 else "write digits only"


def _literal_hint(value: str, detail: ErrorDetails) -> str:
    words = [
        word.strip(" '")
        for word in str(detail.get("ctx", {}).get("expected", "")).replace(" or ", ",").split(",")
    ]
    lowered = {word.lower(): word for word in words}
    close = lowered.get(value.lower()) or did_you_mean(value, words)
    return f"did you mean `{close}`?" if close else ""

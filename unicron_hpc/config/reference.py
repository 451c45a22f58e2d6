"""docs/config.md, made from the settings: `python -m unicron_hpc.config.reference > docs/config.md`."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from unicron_hpc.config import sections
from unicron_hpc.config.settings import Settings, TaskSettings
from unicron_hpc.config.slurm_settings import SbatchOptions, SlurmSettings

_INTRO = """\
# train.yaml

Made from `unicron_hpc/config` by `python -m unicron_hpc.config.reference > docs/config.md`; a test keeps it
true.

`unicron-sbatch train.yaml` reads one YAML file with the sections below. Every mistake in it is reported at
once, each with file, line and column and with what to write instead; then the exit code is 2 and nothing
was submitted. `--set section.key=value` changes a setting on the command line, `--option=value` one of
sbatch's. `templates/gpt-tiny.yaml` is a complete example.

## How values are read

- **The setting decides what a value is, not YAML.** Where a number is wanted, `1e-5` is a number; where a
  time is wanted, `72:00:00` is 72 hours; where true or false is wanted, `no` is false.
- Where text is wanted, a plain `yes`, `no`, `on`, `off`, `true`, `false`, and numbers like `0123` or `0x1f`
  are refused: other YAML readers make something else of them. Put them in quotes: `account: "0123"`.
- A key given twice, an unknown key, a tag (`!x`) and a second document are errors. Anchors, aliases and
  `<<` work.
- An empty value (`key:`) is an error except where the setting may be left out; an empty section is one with
  defaults.
- Lists of nodes are hostlists (`n[1-3,7],login`) or YAML lists (`[n1, n2]`).
- In paths `$NAME`, `${NAME}` and a leading `~` are expanded when the job is submitted; a variable that is
  not set is an error, `$$` is a dollar sign. Files to read (`data:`) are relative to the folder of
  train.yaml, files to write (`run_dir`, `checkpoint.dir`) to the current folder.
- `slurm.setup` is given to the shell as it stands.
"""


def reference() -> str:
    """The text of docs/config.md."""
    parts = [_INTRO, "## Top level\n", *_rows(Settings, skip=("slurm", "recovery", "tasks"))]
    parts += [
        "\n## slurm\n",
        "What is asked of Slurm. The job gets `nodes` + `spares` nodes, one agent on each.\n",
        *_rows(SlurmSettings, skip=tuple(SbatchOptions.model_fields)),
        "\n### Options of sbatch\n",
        "By their long names, with `_` for `-`; man sbatch describes them. All may be left out.\n",
        *_rows(SbatchOptions),
        "\n### Options that cannot be given\n",
        "| option | why |\n|---|---|",
        *(f"| `{key}` | {why} |" for key, why in SlurmSettings.REFUSED.items()),
    ]
    for name, model in _SECTIONS.items():
        parts += [f"\n## {name}\n", f"{inspect.getdoc(model)}\n", *_rows(model)]
    parts += [
        "\n## tasks\n",
        "Several trainings in one allocation, as a list. What a task leaves out of `model`, `train`, `data` "
        "and\n`checkpoint` is taken from the top level, key by key. Without `tasks:` the file is one "
        "training, named as the job.\n",
        *_rows(TaskSettings, skip=("model", "train", "data", "checkpoint")),
    ]
    return "\n".join(parts) + "\n"


_SECTIONS: dict[str, type[BaseModel]] = {
    "model": sections.ModelSettings,
    "train": sections.TrainSettings,
    "data": sections.DataSettings,
    "checkpoint": sections.CheckpointSettings,
    "recovery": sections.RecoverySettings,
}


def _rows(model: type[BaseModel], skip: tuple[str, ...] = ()) -> Iterator[str]:
    """A table of the settings of a section."""
    meanings = _meanings(model)
    yield "| key | value | default | meaning |\n|---|---|---|---|"
    for name, info in model.model_fields.items():
        if name not in skip:
            yield f"| `{name}` | {_kind(model, name)} | {_default(model, name, info)} | {meanings[name]} |"


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field in the source."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, BaseModel) or owner is BaseModel:
            continue
        lines = next(
            node.body
            for node in ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            if isinstance(node, ast.ClassDef)
        )
        for field, below in itertools.pairwise(lines):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = " ".join(_text_of(below).split()).replace("|", "\\|")
    return found


def _text_of(statement: ast.stmt) -> str:
    """The text that a statement consists of; empty for any other."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
        case _:
            return ""


#: How the types of `fields` are called in the reference.
_KINDS = {
    "Text": "text",
    "Name": "name",
    "InputPath": "path",
    "OutputPath": "path",
    "Program": "program",
    "SlurmTime": "time",
    "SlurmSignal": "signal",
    "Hosts": "nodes",
    "DrainReason": "template",
    "ShellLines": "shell lines",
    "Count": "whole number, at least 1",
    "Chosen": "whole number, at least 1, or `auto`",
    "CountOrZero": "whole number, at least 0",
    "Positive": "number above 0",
    "NotNegative": "number, at least 0",
    "Fraction": "number from 0 to below 1",
    "int": "whole number",
    "bool": "true or false",
}


def _kind(model: type[BaseModel], name: str) -> str:
    """What a field takes, from the name of its type."""
    for owner in model.__mro__:
        annotation = inspect.get_annotations(owner).get(name)
        if annotation is not None:
            word = str(annotation).removesuffix(" | None")
            if word.startswith("Literal["):
                return ", ".join(f"`{choice}`" for choice in re.findall(r"['\"]([^'\"]+)['\"]", word))
            return _KINDS[word]
    raise KeyError(name)


def _default(model: type[BaseModel], name: str, info: FieldInfo) -> str:
    if info.default_factory is not None or info.annotation is None:
        return "see right"
    if model is Settings and name in {"name", "run_dir"}:
        return {"name": "see right", "run_dir": "`runs`"}[name]
    if model is sections.CheckpointSettings and name == "dir":
        return "see right"
    if info.is_required():
        return "needed"
    if inspect.get_annotations(model).get(name) == "Chosen":
        return "`auto`"
    value: Any = info.default
    if value is None or value == ():
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    print(reference(), end="")

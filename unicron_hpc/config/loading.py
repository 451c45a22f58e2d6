"""train.yaml into settings: read, override, validate, check; every problem is reported at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from unicron_hpc.config import checks
from unicron_hpc.config.fields import Context, Count, Frozen, Name, OutputPath, Positive
from unicron_hpc.config.overrides import Override, apply_overrides
from unicron_hpc.config.problems import Problem, SettingsError, did_you_mean
from unicron_hpc.config.raw import Items, Place, Raw, Scalar, Table, merged, parse, place_of, read_text
from unicron_hpc.config.sections import (
    CheckpointSettings,
    DataSettings,
    ModelSettings,
    RecoverySettings,
    TrainSettings,
)
from unicron_hpc.config.settings import Settings, TaskSettings
from unicron_hpc.config.slurm_settings import SlurmSettings
from unicron_hpc.config.translate import SECTIONS, Model, validated

_TOP = ("name", "run_dir", "workload", *SECTIONS, "tasks")
_TASK_SECTIONS = ("model", "train", "data", "checkpoint")


def load(path: str | os.PathLike[str], overrides: Sequence[str | Override] = ()) -> Settings:
    """Read and check a train.yaml.

    Parameters
    ----------
    path
        The file.
    overrides
        Settings that replace the file's, each `key.key=value` as with `--set`.

    Raises
    ------
    SettingsError
        With every problem of the file and the overrides, each with its place and a suggestion.
    """
    file = Path(path)
    context = Context(inputs=Path(os.path.abspath(file.parent)), outputs=Path.cwd())
    return loads(read_text(file), str(file), context, overrides)


def load_resolved(path: str | os.PathLike[str]) -> Settings:
    """Read the resolved train.yaml of a run folder (file or folder); nothing is expanded or looked up."""
    file = Path(path)
    file = file / "train.yaml" if file.is_dir() else file
    return loads(read_text(file), str(file), Context(file.parent, file.parent, expand=False))


def loads(text: str, source: str, context: Context, overrides: Sequence[str | Override] = ()) -> Settings:
    """Settings from the text of a train.yaml; `source` names it in messages."""
    table = parse(text, source)
    apply_overrides(table, overrides)
    return _Assembly(table, source, context).settings()


class _Head(Frozen):
    """What stands at the top of train.yaml beside the sections."""

    name: Name
    run_dir: OutputPath


class _TaskHead(Frozen):
    """What stands in a task beside its sections."""

    name: Name
    weight: Positive = 1.0
    min_nodes: Count = 1


class _Assembly:
    """Validates section by section, so that a problem in one hides none in another."""

    def __init__(self, table: Table, source: str, context: Context) -> None:
        self.table = table
        self.source = source
        self.context = context
        self.problems: list[Problem] = []

    def settings(self) -> Settings:
        """The settings.

        Raises
        ------
        SettingsError
            With everything that is wrong, in the order of the file.
        """
        for key in self.table.values:
            if key not in _TOP:
                self._complain(self.table.keys[key], f"{key}: unknown key", _top_level_hint(key))
        head = self._head()
        slurm = self._section("slurm", SlurmSettings, self._below("slurm"))
        recovery = self._section("recovery", RecoverySettings, self._below("recovery") or self._empty())
        tasks = self._tasks(head, slurm)
        if recovery is not None:
            self._report(self.table, checks.check_recovery(recovery, slurm))
        if slurm is not None and tasks is not None and "tasks" in self.table.values:
            self._report(self.table, checks.check_tasks(tasks, slurm))
        if self.problems or slurm is None or recovery is None or tasks is None:
            raise SettingsError(sorted(self.problems, key=_in_file_order))
        return Settings(
            name=head.name, run_dir=head.run_dir, workload="gpt", slurm=slurm, recovery=recovery, tasks=tasks
        )

    def _head(self) -> _Head:
        """Name and run folder; where they are wrong that is noted, and others stand in for them."""
        workload = self.table.values.get("workload")
        if workload is not None and not (isinstance(workload, Scalar) and workload.text == "gpt"):
            shown = repr(str(workload.text)) if isinstance(workload, Scalar) else "this"
            self._complain(
                workload.place,
                f"workload: {shown} is not supported by this version",
                "write `workload: gpt`, the Megatron-core model; own classes and commands do not run yet",
            )
        values: dict[str, Raw] = {
            "name": Scalar(_name_from(self.source), self.table.place),
            "run_dir": Scalar("runs", self.table.place),
        }
        values |= {key: value for key, value in self.table.values.items() if key in values}
        found = validated(
            _Head, Table(values, self.table.place, self.table.keys), "", self.context, self.problems
        )
        return found or _Head(name="invalid", run_dir=Path("invalid"))

    def _tasks(self, head: _Head, slurm: SlurmSettings | None) -> tuple[TaskSettings, ...] | None:
        raw = self.table.values.get("tasks")
        if raw is None:
            single = Table({"name": Scalar(head.name, self.table.place)}, self.table.place)
            task = self._task(single, head, slurm)
            return None if task is None else (task,)
        if not isinstance(raw, Items) or not raw.items:
            self._complain(
                raw.place, "tasks: expected a list of trainings", "write one `- name: ...` for each"
            )
            return None
        tasks: list[TaskSettings | None] = []
        for k, item in enumerate(raw.items):
            if isinstance(item, Table):
                tasks.append(self._task(item, head, slurm))
            else:
                self._complain(item.place, f"tasks.{k}: expected a mapping", "write `- name: ...`")
                tasks.append(None)
        return None if None in tasks else tuple(task for task in tasks if task is not None)

    def _task(self, own: Table, head: _Head, slurm: SlurmSettings | None) -> TaskSettings | None:
        """One training: the task's own settings laid over the top level's, validated and checked."""
        whole = Table(dict(own.values), own.place, dict(own.keys))
        for key in _TASK_SECTIONS:
            section = merged(self._below(key), self._below(key, own))
            if section is not None:
                whole.values[key] = section
        self._default_checkpoint_dir(whole, head)
        data = whole.values
        model = self._section("model", ModelSettings, data.get("model"), own)
        train = self._section("train", TrainSettings, data.get("train"), own)
        source = self._section("data", DataSettings, data.get("data"), own)
        checkpoint = self._section("checkpoint", CheckpointSettings, data.get("checkpoint"), own)
        frame = Table({k: v for k, v in own.values.items() if k not in _TASK_SECTIONS}, own.place, own.keys)
        naming = validated(_TaskHead, frame, "tasks", self.context, self.problems)
        if model:
            self._report(whole, checks.check_model(model))
        if train:
            self._report(whole, checks.check_train(train))
        if source:
            self._report(whole, checks.check_data(source, look=self.context.expand))
        if model and source:
            self._report(whole, checks.check_vocabulary(model, source))
        if model and train:
            self._report(whole, checks.check_parallel(model, train))
        if slurm and train:
            both = Table({**whole.values, "slurm": self.table.values["slurm"]}, whole.place)
            self._report(both, checks.check_ranks(slurm, train))
        if model is None or train is None or source is None or checkpoint is None or naming is None:
            return None
        return TaskSettings(
            name=naming.name, weight=naming.weight, min_nodes=naming.min_nodes,
            model=model, train=train, data=source, checkpoint=checkpoint,
        )  # fmt: skip

    def _default_checkpoint_dir(self, whole: Table, head: _Head) -> None:
        section = whole.values.setdefault("checkpoint", self._empty())
        if isinstance(section, Table) and "dir" not in section.values:
            name = whole.values.get("name")
            folder = head.run_dir / "checkpoints" / head.name
            if "tasks" in self.table.values and isinstance(name, Scalar) and name.text:
                folder = folder / name.text
            # `$$`: this is a finished path, nothing in it is a variable.
            text = str(folder).replace("$", "$$") if self.context.expand else str(folder)
            whole.values["checkpoint"] = Table(
                {**section.values, "dir": Scalar(text, section.place)}, section.place, section.keys
            )

    def _below(self, key: str, table: Table | None = None) -> Raw | None:
        """The section `key`; a section whose lines are all commented out is an empty one."""
        raw = (table or self.table).values.get(key)
        return Table({}, raw.place) if isinstance(raw, Scalar) and raw.text is None else raw

    def _section(
        self, key: str, model: type[Model], raw: Raw | None, near: Table | None = None
    ) -> Model | None:
        """The section `key` as a `model`; `near` is where it is missed when it is not there."""
        if raw is None:
            needed = ", ".join(
                f"`{name}`" for name, field in model.model_fields.items() if field.is_required()
            )
            hint = f"add `{key}:` with {needed}" if needed else f"add `{key}:`; docs/config.md lists its keys"
            self._complain((near or self.table).place, f"{key}: is missing", hint)
            return None
        if not isinstance(raw, Table):
            self._complain(raw.place, f"{key}: expected settings below it", "write them indented, one a line")
            return None
        return validated(model, raw, key, self.context, self.problems)

    def _empty(self) -> Table:
        return Table({}, Place(self.source, 1, 1))

    def _report(self, raw: Table, findings: Iterable[checks.Finding]) -> None:
        for path, message, hint in findings:
            self._complain(place_of(raw, path), message, hint)

    def _complain(self, place: Place, message: str, hint: str = "") -> None:
        self.problems.append(Problem(str(place), message, hint))


def _name_from(source: str) -> str:
    """A job name made of the file's: `gpt-tiny` for `templates/gpt-tiny.yaml`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).stem).strip("-._")[:64] or "train"


def _top_level_hint(key: str) -> str:
    """What to write instead of an unknown key at the top level."""
    plain = key.lstrip("-").replace("-", "_")
    for section, model in SECTIONS.items():
        if plain in model.model_fields:
            return f"`{plain}` belongs under `{section}:`"
    close = did_you_mean(key, _TOP)
    return f"did you mean `{close}`?" if close else f"known here: {', '.join(_TOP)}"


def _in_file_order(problem: Problem) -> tuple[int, int]:
    """Line and column of a problem; those from the command line come last."""
    match = re.search(r":(\d+)(?::(\d+))?$", problem.where)
    return (int(match[1]), int(match[2] or 0)) if match else (1 << 30, 0)

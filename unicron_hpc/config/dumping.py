"""Settings back into YAML, with every default written out."""

from __future__ import annotations

from typing import Any

import yaml

from unicron_hpc.config.fields import reads_as_other_than_text
from unicron_hpc.config.settings import Settings
from unicron_hpc.config.slurm_settings import SbatchOptions


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that the loader would ask to be quoted."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if reads_as_other_than_text(text) or not text.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump_resolved(settings: Settings) -> str:
    """The text of a train.yaml that `load_resolved` reads back as equal settings."""
    data: dict[str, Any] = settings.model_dump(mode="json", exclude_none=True)
    # Sbatch's options number some eighty; only those that were given are of interest.
    given = settings.slurm.model_dump(mode="json", exclude_defaults=True)
    data["slurm"] = {
        key: value
        for key, value in data["slurm"].items()
        if key in given or key not in SbatchOptions.model_fields
    }
    tasks = data.pop("tasks")
    only = tasks[0]
    if len(tasks) == 1 and (only["name"], only["weight"], only["min_nodes"]) == (settings.name, 1.0, 1):
        data |= {key: only[key] for key in ("model", "train", "data", "checkpoint")}
    else:
        data["tasks"] = tasks
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000))

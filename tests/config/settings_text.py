"""A small valid train.yaml for tests, and ways to load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unicron_hpc.config import Settings, SettingsError
from unicron_hpc.config.fields import Context
from unicron_hpc.config.loading import loads

VALID = """\
name: tiny
slurm:
  nodes: 4
  spares: 1
model:
  num_layers: 4
  hidden_size: 64
  num_attention_heads: 4
  seq_length: 64
train:
  micro_batch_size: 2
  global_batch_size: 16
  train_iters: 10
  lr: 1e-3
  pipeline_model_parallel_size: 2
data:
  text: /data/corpus.txt
"""


def load_text(text: str, overrides: Sequence[str] = (), *, expand: bool = False) -> Settings:
    """Settings of `text`, as if it were /project/train.yaml and the current folder /here."""
    return loads(text, "train.yaml", Context(Path("/project"), Path("/here"), expand=expand), overrides)


def problems(text: str, overrides: Sequence[str] = ()) -> list[str]:
    """Every problem of `text` as one line each: `place: message | hint`."""
    try:
        load_text(text, overrides)
    except SettingsError as error:
        return [str(problem).replace("\n  ", " | ") for problem in error.problems]
    return []


def changed(old: str, new: str) -> str:
    """The valid text with one piece replaced."""
    assert old in VALID
    return VALID.replace(old, new, 1)

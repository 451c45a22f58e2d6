"""Settings for tests of the script and of submission."""

from __future__ import annotations

from pathlib import Path

from unicron_hpc.config import Settings
from unicron_hpc.config.fields import Context
from unicron_hpc.config.loading import loads
from unicron_hpc.config.overrides import Override

_TEXT = """
name: tiny
run_dir: RUNS
slurm: {nodes: 4, spares: 1, time: 72:00:00}
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 64}
train: {micro_batch_size: 2, global_batch_size: 16, train_iters: 10, lr: 1e-3}
data: {text: /data/corpus.txt}
"""


def settings(*overrides: str | Override, run_dir: Path = Path("/scratch/runs")) -> Settings:
    """Small valid settings, changed by `overrides`."""
    text = _TEXT.replace("RUNS", str(run_dir))
    return loads(text, "train.yaml", Context(Path("/"), Path("/"), expand=False), overrides)


def option(key: str, text: str) -> Override:
    """A setting under `slurm:` with a literal value."""
    return Override(f"--{key}={text}", ("slurm", key), text)

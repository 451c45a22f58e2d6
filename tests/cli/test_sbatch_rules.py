"""A site's rules for errors are checked before anything is submitted, and go with the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from unicron_hpc.cli import sbatch
from unicron_hpc.config import load, load_resolved
from unicron_hpc.slurm.run_folder import RULES
from unicron_hpc.slurm.submit import Request, stage

TRAINING = """\
slurm: {nodes: 2}
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, seq_length: 16}
train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 3, lr: 1.0e-3}
data: {text: corpus.txt}
recovery: {rules: site.yaml}
"""
RULE = "rules: [{name: a, pattern: leaf, error: link, severity: SEV3, blame: network, meaning: A leaf.}]\n"


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("words")
    (tmp_path / "train.yaml").write_text(TRAINING)
    (tmp_path / "site.yaml").write_text(RULE)
    return tmp_path / "train.yaml"


def test_a_mistake_in_the_rules_is_told_with_its_line_and_nothing_is_submitted(training: Path) -> None:
    training.with_name("site.yaml").write_text(RULE.replace("SEV3", "SEV5"))
    done = CliRunner().invoke(sbatch.main, ["--dry-run", str(training)])
    assert done.exit_code == 2
    assert "site.yaml:1:" in done.output
    assert "SEV5" in done.output


def test_rules_that_are_not_there_are_missed_before_the_job_is(training: Path) -> None:
    training.with_name("site.yaml").unlink()
    done = CliRunner().invoke(sbatch.main, ["--dry-run", str(training)])
    assert done.exit_code == 2
    assert "no such file" in done.output


def test_right_rules_are_no_hindrance(training: Path) -> None:
    assert CliRunner().invoke(sbatch.main, ["--dry-run", str(training)]).exit_code == 0


def test_the_run_folder_gets_a_copy_which_later_changes_do_not_reach(training: Path) -> None:
    staged = stage(Request(load(training), "train.yaml", TRAINING, rules=RULE))
    training.with_name("site.yaml").write_text("")
    assert (staged / RULES).read_text() == RULE
    assert (staged / RULES).stat().st_mode & 0o777 == 0o600
    assert load_resolved(staged).recovery.rules == training.with_name("site.yaml")


def test_without_rules_there_is_no_file(training: Path) -> None:
    assert not (stage(Request(load(training), "train.yaml", TRAINING)) / RULES).exists()

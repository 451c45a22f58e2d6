"""The run folder gets its final name from whoever comes first, once."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unicron_hpc.errors import ConfigError, UnicronError
from unicron_hpc.slurm.run_folder import claim_run_folder, stage


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_staged_folder_and_its_files_are_private(tmp_path: Path) -> None:
    staged = stage(tmp_path / "new" / "runs", "job", {"train.yaml": "a: 1\n"})
    assert _mode(staged) == 0o700
    assert _mode(staged / "train.yaml") == 0o600
    assert _mode(staged / "logs") == 0o700


def test_it_becomes_name_and_number_and_stays_so(tmp_path: Path) -> None:
    staged = stage(tmp_path, "my.job", {"train.yaml": "x"})
    final = claim_run_folder(staged, "12")
    assert final == tmp_path / "my.job-12"
    assert (final / "train.yaml").read_text() == "x"
    assert claim_run_folder(staged, "12") == final


@pytest.mark.parametrize("earlier", [False, True])
def test_any_number_may_claim_at_once(tmp_path: Path, earlier: bool) -> None:
    for turn in range(20):
        folder = tmp_path / str(turn)
        if earlier:
            (folder / "job-7").mkdir(parents=True)
            (folder / "job-7" / "old").touch()
        staged = stage(folder, "job", {"new": ""})
        with ThreadPoolExecutor(6) as pool:
            found = set(pool.map(lambda _, s=staged: claim_run_folder(s, "7"), range(6)))
        assert found == {folder / "job-7"}
        assert (folder / "job-7" / "new").exists()
        old = list(folder.glob("job-7.old-*/old"))
        assert len(old) == earlier
        assert len(list(folder.iterdir())) == 1 + earlier


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnicronError, match="gone"):
        claim_run_folder(tmp_path / ".staged-job.abc", "1", patience=0)


def test_only_staged_folders_are_renamed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(UnicronError, match="not a staged"):
        claim_run_folder(tmp_path / "precious", "1")


def test_a_run_dir_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to run_dir"):
        stage(tmp_path / "file" / "runs", "job", {})

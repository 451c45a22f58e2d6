"""The job's key pair in the run folder."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unicron_hpc.errors import UnicronError
from unicron_hpc.supervisor.keys import KEY_FILE, make_keys, read_keys


def test_only_the_owner_can_read_the_keys_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_keys(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_a_restarted_batch_process_gets_the_keys_of_the_first(tmp_path: Path) -> None:
    first = make_keys(tmp_path)
    assert make_keys(tmp_path) == first == read_keys(tmp_path)
    assert first.public != first.secret


def test_of_many_who_make_keys_at_once_all_get_the_same_pair(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        pairs = set(pool.map(lambda _: make_keys(tmp_path), range(8)))
    assert len(pairs) == 1
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_what_a_killed_predecessor_left_does_not_lock_us_out(tmp_path: Path) -> None:
    (tmp_path / f".{KEY_FILE}.{os.getpid()}").write_text("half")
    assert make_keys(tmp_path) == read_keys(tmp_path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_keys_that_others_can_read_or_write_are_refused(tmp_path: Path, mode: int) -> None:
    make_keys(tmp_path)
    (tmp_path / KEY_FILE).chmod(mode)
    with pytest.raises(UnicronError, match="chmod 600"):
        read_keys(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", json.dumps({"public": "x"}), json.dumps({"public": 1, "secret": 2})]
)
def test_damaged_keys_are_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / KEY_FILE).write_text(content)
    (tmp_path / KEY_FILE).chmod(0o600)
    with pytest.raises(UnicronError, match=KEY_FILE):
        read_keys(tmp_path)


def test_a_folder_without_keys_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnicronError, match="run folder"):
        read_keys(tmp_path)

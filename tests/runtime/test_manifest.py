"""Only whole checkpoints count, and every other one is named with its reason."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.errors import ConfigError, UnicronError
from unicron_hpc.runtime.manifest import (
    MANIFEST_NAME,
    Manifest,
    check_model,
    checkpoint_name,
    describe_file,
    newest_whole,
    partial_name,
    prune,
    publish,
    read_manifest,
    verify,
    write_manifest,
)

MODEL = {"num_layers": 4, "hidden_size": 64}


def make(
    root: Path, iteration: int, *, epoch: int = 0, contents: tuple[bytes, ...] = (b"weights", b"moments")
) -> Path:
    partial = root / partial_name(iteration, epoch)
    partial.mkdir(parents=True)
    files = []
    for number, content in enumerate(contents):
        path = partial / f"__{number}_0.distcp"
        path.write_bytes(content)
        files.append(describe_file(path))
    write_manifest(
        partial, iteration=iteration, files=files, layout_summary={"pipeline": 2}, common={"model": MODEL}
    )
    return publish(partial)


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    make(tmp_path, 50)
    newest = make(tmp_path, 100)
    found, skipped = newest_whole(tmp_path)
    assert found is not None
    assert (found.path, found.iteration, skipped) == (newest, 100, ())
    assert newest.name == "iter_0000100"


def test_no_checkpoint_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "none") == (None, ())


def test_foreign_names_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "iter_50").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert newest_whole(tmp_path) == (None, ())


def drop_manifest(path: Path) -> Path:
    (path / MANIFEST_NAME).unlink()
    return path


def drop_file(path: Path) -> Path:
    (path / "__1_0.distcp").unlink()
    return path


def truncate(path: Path) -> Path:
    (path / "__1_0.distcp").write_bytes(b"mom")
    return path


def flip(path: Path) -> Path:
    (path / "__1_0.distcp").write_bytes(b"mom\xe5nts")
    return path


def break_json(path: Path) -> Path:
    (path / MANIFEST_NAME).write_text('{"format": 1, "iter')
    return path


def edit_manifest(path: Path) -> Path:
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    manifest["common"]["model"]["hidden_size"] = 128
    (path / MANIFEST_NAME).write_text(json.dumps(manifest))
    return path


def rename(path: Path) -> Path:
    return path.rename(path.with_name(checkpoint_name(110)))


def half_written(path: Path) -> Path:
    return path.rename(path.with_name(partial_name(100, 3)))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (drop_manifest, "no manifest: the checkpoint was never finished"),
        (drop_file, "__1_0.distcp: missing"),
        (truncate, "__1_0.distcp: truncated, 3 bytes found, 7 expected"),
        (flip, "__1_0.distcp: checksum differs"),
        (break_json, "manifest is not valid JSON"),
        (edit_manifest, "manifest is damaged: its checksum differs"),
        (rename, "folder is named iter_0000110, its manifest says iteration 100"),
        (half_written, "half-written"),
    ],
)
def test_a_broken_checkpoint_is_skipped_with_its_reason(tmp_path: Path, damage, reason: str) -> None:  # type: ignore[no-untyped-def]
    older = make(tmp_path, 50)
    broken = damage(make(tmp_path, 100))
    found, skipped = newest_whole(tmp_path)
    assert found is not None
    assert found.path == older
    assert [path for path, _ in skipped] == [broken]
    assert reason in skipped[0].why


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    path = make(tmp_path, 50)
    outside = tmp_path / "secret"
    outside.write_bytes(b"x")
    file = describe_file(outside)
    partial = tmp_path / partial_name(60, 0)
    partial.mkdir()
    with pytest.raises(UnicronError, match="not a plain file name"):
        write_manifest(
            partial,
            iteration=60,
            files=[type(file)("../secret", file.bytes, file.checksum)],
            layout_summary={},
            common={},
        )
    assert verify(path).whole


def test_no_manifest_is_written_over_a_missing_file(tmp_path: Path) -> None:
    partial = tmp_path / partial_name(10, 0)
    partial.mkdir()
    (partial / "a").write_bytes(b"a")
    files = [describe_file(partial / "a")]
    (partial / "a").unlink()
    with pytest.raises(UnicronError, match="a: missing"):
        write_manifest(partial, iteration=10, files=files, layout_summary={}, common={})
    assert not (partial / MANIFEST_NAME).exists()


def test_publishing_twice_keeps_the_first_and_leaves_no_partial(tmp_path: Path) -> None:
    first = make(tmp_path, 50, epoch=1)
    inode = first.stat().st_ino
    second = make(tmp_path, 50, epoch=2)
    assert second == first
    assert second.stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["iter_0000050"]


def test_publishing_replaces_a_broken_checkpoint_of_the_same_iteration(tmp_path: Path) -> None:
    truncate(make(tmp_path, 50, epoch=1))
    assert verify(make(tmp_path, 50, epoch=2)).whole


def test_another_model_is_refused_and_every_difference_named(tmp_path: Path) -> None:
    manifest = read_manifest(make(tmp_path, 50))
    check_model(manifest, MODEL, where="x")
    with pytest.raises(ConfigError, match=r"hidden_size: checkpoint has 64, train\.yaml has 128"):
        check_model(manifest, {**MODEL, "hidden_size": 128}, where="x")


def test_pruning_keeps_the_newest_whole_ones_and_newer_unfinished_ones(tmp_path: Path) -> None:
    for iteration in (10, 20, 30, 40):
        make(tmp_path, iteration)
    half_done_old = tmp_path / partial_name(35, 0)
    half_done_new = tmp_path / partial_name(50, 0)
    half_done_old.mkdir()
    half_done_new.mkdir()
    deleted = prune(tmp_path, 2)
    assert {path.name for path in deleted} == {"iter_0000010", "iter_0000020", half_done_old.name}
    assert {path.name for path in tmp_path.iterdir()} == {"iter_0000030", "iter_0000040", half_done_new.name}


def test_pruning_never_counts_on_a_damaged_newest(tmp_path: Path) -> None:
    make(tmp_path, 10)
    flip(make(tmp_path, 20))
    assert prune(tmp_path, 1) == ()
    found, _ = newest_whole(tmp_path)
    assert found is not None
    assert found.iteration == 10


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.keep is 0"):
        prune(tmp_path, 0)


DAMAGE = st.sampled_from(["none", "partial", "no manifest", "flip", "truncate"])


@settings(max_examples=40, deadline=None)
@given(
    damages=st.lists(DAMAGE, min_size=1, max_size=5),
    keep=st.integers(1, 3),
    position=st.integers(0, 10**6),
    bit=st.integers(0, 7),
)
def test_for_any_history_the_newest_undamaged_one_is_found_and_survives_pruning(
    damages: list[str], keep: int, position: int, bit: int
) -> None:
    root = Path(tempfile.mkdtemp(prefix="unicron-test-"))
    try:
        expected = None
        for number, damage in enumerate(damages, start=1):
            path = make(root, number)
            if damage == "none":
                expected = number
            elif damage == "partial":
                path.rename(root / partial_name(number, 0))
            elif damage == "no manifest":
                drop_manifest(path)
            else:
                victims = sorted(path.iterdir())
                victim = victims[position % len(victims)]
                data = bytearray(victim.read_bytes())
                if damage == "flip":
                    data[position % len(data)] ^= 1 << bit
                    # White space between the manifest's fields carries no meaning: both outcomes are right.
                    if victim.name == MANIFEST_NAME and _same_meaning(victim.read_bytes(), bytes(data)):
                        expected = number
                else:
                    del data[position % (len(data) - 1) :]
                victim.write_bytes(bytes(data))
        for _ in range(2):
            found, skipped = newest_whole(root)
            assert (found.iteration if found else None) == expected
            assert all(why for _, why in skipped)
            prune(root, keep)
    finally:
        shutil.rmtree(root)


def _same_meaning(before: bytes, after: bytes) -> bool:
    try:
        return json.loads(before) == json.loads(after)
    except ValueError:
        return False


def test_reading_a_manifest_gives_back_what_was_written(tmp_path: Path) -> None:
    manifest = read_manifest(make(tmp_path, 7, contents=(b"a", b"")))
    assert isinstance(manifest, Manifest)
    assert [(file.name, file.bytes) for file in manifest.files] == [("__0_0.distcp", 1), ("__1_0.distcp", 0)]
    assert (manifest.iteration, manifest.layout, manifest.common) == (7, {"pipeline": 2}, {"model": MODEL})

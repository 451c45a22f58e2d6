"""The same samples in the same order, whatever reads them; and bad data is named before a rank starts."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

from unicron_hpc.errors import ConfigError, UnicronError
from unicron_hpc.runtime.data import DataIndex, MicroBatches, open_micro_batches
from unicron_hpc.runtime.prepare_data import END_OF_DOCUMENT, inspect_dataset, main, prepare

SEQ = 16
TEXT = "\n\n".join(f"Paragraph {number}: the quick brown fox, line one.\nline two." for number in range(40))


def make(tmp_path: Path, content: str | bytes = TEXT, **changes: Any) -> DataIndex:
    text = tmp_path / "some text.txt"
    text.write_bytes(content if isinstance(content, bytes) else content.encode())
    return prepare_there(text.parent, **changes)


def prepare_there(tmp_path: Path, **changes: Any) -> DataIndex:
    arguments: dict[str, Any] = {
        "text": tmp_path / "some text.txt",
        "path": None,
        "seq_length": SEQ,
        "samples_needed": 100,
        "seed": 1,
        "vocab_size": 384,
        "out_dir": tmp_path / "data",
    }
    return prepare(**{**arguments, **changes})


def reader(index: DataIndex, *, micro: int = 2, total: int = 8) -> MicroBatches:
    return open_micro_batches(index, micro_batch_size=micro, global_batch_size=total)


def write_dataset(prefix: Path, documents: list[list[int]], dtype: type = np.int32) -> Path:
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        builder.add_document(document, [len(document)])
    builder.finalize(f"{prefix}.idx")
    return prefix


def test_a_text_becomes_bytes_with_an_end_after_each_paragraph(tmp_path: Path) -> None:
    index = make(tmp_path, "one\n\n\ntwo\nlines\r\n \r\nthree" + "." * SEQ)
    dataset = IndexedDataset(index.prefix)
    found = [dataset[number] for number in range(len(dataset))]
    assert [bytes(tokens[:-1].astype(np.uint8)) for tokens in found] == [
        b"one",
        b"two\nlines",
        b"three" + b"." * SEQ,
    ]
    assert {int(tokens[-1]) for tokens in found} == {END_OF_DOCUMENT}
    assert (index.documents, index.tokens) == (3, sum(map(len, found)))


def test_a_micro_batch_is_samples_of_the_text_shifted_by_one(tmp_path: Path) -> None:
    index = make(tmp_path)
    batch = reader(index).micro_batch(1, 0)
    assert {name: (value.shape, value.dtype) for name, value in batch.items()} == {
        "tokens": ((2, SEQ), torch.int64),
        "labels": ((2, SEQ), torch.int64),
        "loss_mask": ((2, SEQ), torch.float32),
        "position_ids": ((2, SEQ), torch.int64),
    }
    assert torch.equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    assert torch.equal(batch["position_ids"][1], torch.arange(SEQ))
    assert bool((batch["loss_mask"] == 1).all())
    dataset = IndexedDataset(index.prefix)
    documents = {bytes(dataset[number].astype(np.uint16)) for number in range(len(dataset))}
    for row in batch["tokens"]:
        for piece in bytes(row.numpy().astype(np.uint16)).split(END_OF_DOCUMENT.to_bytes(2, "little")):
            assert any(piece in document for document in documents)


def test_samples_depend_on_their_number_only(tmp_path: Path) -> None:
    """Cut into micro-batches of any size, asked for in any order, by any reader: the same samples."""
    index = make(tmp_path)
    one_by_one = reader(index, micro=1)
    rows = [
        [one_by_one.micro_batch(iteration, number)["tokens"] for number in range(8)]
        for iteration in (1, 2, 3)
    ]
    by_fours = reader(index, micro=4)
    for iteration in (3, 1, 2):
        for number in (1, 0):
            expected = torch.cat(rows[iteration - 1][4 * number : 4 * number + 4])
            assert torch.equal(by_fours.micro_batch(iteration, number)["tokens"], expected)


def test_the_seed_decides_the_order(tmp_path: Path) -> None:
    def first(seed: int) -> torch.Tensor:
        return reader(make(tmp_path, seed=seed)).micro_batch(1, 0)["tokens"]

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_more_iterations_do_not_change_the_samples_of_the_earlier_ones(tmp_path: Path) -> None:
    short, long = make(tmp_path, samples_needed=8), make(tmp_path, samples_needed=150_000)
    assert long.samples > long.block_samples
    for index in range(4):
        before, after = (reader(data).micro_batch(1, index)["tokens"] for data in (short, long))
        assert torch.equal(before, after)


def test_a_block_shows_every_part_of_the_data_and_the_next_one_shows_it_in_another_order(
    tmp_path: Path,
) -> None:
    index = make(tmp_path, samples_needed=140_000)
    batches = reader(index, micro=1, total=1)
    per_epoch = index.tokens // SEQ
    seen = torch.cat([batches.micro_batch(number + 1, 0)["tokens"] for number in range(20 * per_epoch)])
    dataset = IndexedDataset(index.prefix)
    numbers = {
        word
        for number in range(len(dataset))
        for word in bytes(dataset[number][:-1].astype(np.uint8)).split()
    }
    text = b" ".join(bytes(row[row < 256].numpy().astype(np.uint8)) for row in seen)
    assert all(word in text for word in numbers)
    second = batches.micro_batch(index.block_samples + 1, 0)["tokens"]
    assert not torch.equal(second, batches.micro_batch(1, 0)["tokens"])


def test_samples_beyond_what_was_made_ready_are_refused(tmp_path: Path) -> None:
    batches = reader(make(tmp_path, samples_needed=16))
    batches.micro_batch(2, 3)
    with pytest.raises(UnicronError, match="iteration 3 needs samples up to 18, 16 were made ready"):
        batches.micro_batch(3, 0)
    for iteration, index in ((0, 0), (1, 4), (1, -1)):
        with pytest.raises(UnicronError, match="there is no micro-batch"):
            batches.micro_batch(iteration, index)


def test_an_existing_dataset_is_used_as_it_is(tmp_path: Path) -> None:
    prefix = write_dataset(tmp_path / "mine", [list(range(30)), list(range(100, 140))])
    index = make(tmp_path, text=None, path=str(prefix))
    assert (index.prefix, index.tokens, index.documents) == (str(prefix), 70, 2)
    tokens = reader(index).micro_batch(1, 0)["tokens"]
    assert set(tokens.flatten().tolist()) <= {*range(30), *range(100, 140)}


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    def contents() -> dict[str, int]:
        return {
            str(path): path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*") if path.is_file()
        }

    index = make(tmp_path)
    before = contents()
    assert make(tmp_path) == index
    assert contents() == before
    assert not [path for path in before if "/." in path]


@pytest.mark.parametrize("damage", ["no idx", "no bin", "short bin", "short idx"])
def test_a_half_built_dataset_is_built_again(tmp_path: Path, damage: str) -> None:
    index = make(tmp_path)
    what, ending = damage.split()
    path = Path(f"{index.prefix}.{ending}")
    whole = path.read_bytes()
    if what == "no":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2])
    make(tmp_path)
    assert path.read_bytes() == whole


def test_a_builder_killed_half_way_leaves_nothing_that_counts(tmp_path: Path) -> None:
    text = tmp_path / "some text.txt"
    text.write_text(TEXT)
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            prepare_there(tmp_path)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    left = [path.name for path in (tmp_path / "data").iterdir()]
    assert left
    assert all(name.startswith(".") for name in left)
    assert reader(make(tmp_path)).micro_batch(1, 0)["tokens"].shape == (2, SEQ)


def test_a_changed_text_is_another_dataset(tmp_path: Path) -> None:
    assert make(tmp_path).prefix != make(tmp_path, TEXT + "!").prefix


def test_too_short_a_text_says_how_many_tokens_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"some text\.txt: the data has 16 tokens, one sample needs 17"):
        make(tmp_path, "x" * 15)
    with pytest.raises(ConfigError, match="the data has 0 tokens"):
        make(tmp_path, "")
    assert make(tmp_path, "x" * 16).tokens == 17


def test_a_missing_or_unreadable_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.txt: data\.text cannot be read: No such file"):
        make(tmp_path, text=tmp_path / "none.txt")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        make(tmp_path, text=tmp_path)


def test_neither_or_both_of_text_and_path_is_refused(tmp_path: Path) -> None:
    for changes in ({"text": None}, {"path": "x"}):
        with pytest.raises(ConfigError, match="exactly one of"):
            make(tmp_path, **changes)


def cut(path: Path, left: int) -> None:
    path.write_bytes(path.read_bytes()[:left])


def damaged(prefix: Path, what: str) -> None:
    idx, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    if what == "no bin":
        data.unlink()
    elif what == "short bin":
        cut(data, 100)
    elif what == "short idx":
        cut(idx, 50)
    elif what == "tiny idx":
        cut(idx, 5)
    elif what == "other idx":
        idx.write_bytes(b"PK" + idx.read_bytes()[2:])
    elif what == "float tokens":
        raw = bytearray(idx.read_bytes())
        raw[17] = 7
        idx.write_bytes(bytes(raw))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no bin", r"mine\.bin cannot be read: No such file"),
        ("short bin", r"mine\.bin: the data has 100 bytes, its index says 280"),
        ("short idx", r"mine\.idx: the index has 50 bytes, 82 expected"),
        ("tiny idx", r"mine\.idx: the index is cut off after 5 bytes"),
        ("other idx", r"mine\.idx: not the index of a Megatron dataset"),
        ("float tokens", r"mine\.idx: token type 7 is not an integer type"),
    ],
)
def test_a_damaged_dataset_is_named(tmp_path: Path, what: str, message: str) -> None:
    prefix = write_dataset(tmp_path / "mine", [list(range(30)), list(range(100, 140))])
    damaged(prefix, what)
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, text=None, path=str(prefix))


def test_a_path_with_an_ending_is_corrected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Write .*/mine\."):
        make(tmp_path, text=None, path=str(tmp_path / "mine.bin"))


def test_tokens_outside_the_vocabulary_are_found_before_a_rank_starts(tmp_path: Path) -> None:
    prefix = write_dataset(tmp_path / "mine", [[*range(30), 500]])
    with pytest.raises(
        ConfigError, match=r"contains token 500, the vocabulary ends at 383[\s\S]*at least 501"
    ):
        make(tmp_path, text=None, path=str(prefix))
    negative = write_dataset(tmp_path / "negative", [[*range(30), -3]])
    with pytest.raises(ConfigError, match="contains token -3"):
        make(tmp_path, text=None, path=str(negative))
    with pytest.raises(ConfigError, match="vocab_size is 256, the byte tokenizer has 257"):
        make(tmp_path, vocab_size=256)


def test_a_token_outside_the_vocabulary_never_reaches_the_model(tmp_path: Path) -> None:
    """The data changed after it was checked, or lies behind the part that is searched."""
    prefix = write_dataset(tmp_path / "mine", [list(range(60))])
    batches = reader(make(tmp_path, text=None, path=str(prefix)))
    batches.micro_batch(1, 0)
    with Path(f"{prefix}.bin").open("rb+") as stream:
        stream.write(np.full(60, 400, dtype=np.int32).tobytes())
    with pytest.raises(ConfigError, match="contains token 400, the vocabulary ends at 383"):
        batches.micro_batch(1, 0)


def test_a_rank_does_not_build_what_was_not_made_ready(tmp_path: Path) -> None:
    index = make(tmp_path)
    (Path(index.cache) / "block-00000").rename(tmp_path / "gone")
    with pytest.raises(UnicronError, match="the sample order was not made ready"):
        reader(index).micro_batch(1, 0)
    assert not any(Path(index.cache).iterdir())


def test_a_damaged_sample_order_is_named(tmp_path: Path) -> None:
    index = make(tmp_path)
    cut(next(Path(index.cache).rglob("*shuffle_index.npy")), 100)
    with pytest.raises(
        UnicronError, match=r"block-00000: the sample order cannot be read[\s\S]*Delete the folder"
    ):
        reader(index).micro_batch(1, 0)


def test_a_global_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="global_batch_size 8 is no multiple of micro_batch_size 3"):
        reader(make(tmp_path), micro=3)


def test_an_index_survives_the_trip_to_the_ranks(tmp_path: Path) -> None:
    index = make(tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(index), type=DataIndex) == index


@pytest.mark.ranks
def test_as_a_program_it_prints_the_index_or_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "some text.txt"
    text.write_text(TEXT)
    request = {
        "text": str(text),
        "seq_length": SEQ,
        "samples_needed": 100,
        "seed": 1,
        "vocab_size": 384,
        "out_dir": str(tmp_path / "data"),
    }
    run = subprocess.run(
        [sys.executable, "-m", "unicron_hpc.runtime.prepare_data", json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert msgspec.json.decode(run.stdout, type=DataIndex) == make(tmp_path)
    assert main([json.dumps({**request, "text": str(tmp_path / "none")})]) == 2
    assert "none: data.text cannot be read" in capsys.readouterr().err
    assert main([]) == 2


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    seq_length=st.integers(1, 20),
    seed=st.integers(0, 2**40),
)
def test_any_data_that_is_long_enough_gives_full_samples_up_to_the_last(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seq_length: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    start = np.cumsum([0, *lengths]).tolist()
    documents = [list(range(first, first + length)) for first, length in zip(start, lengths, strict=False)]
    prefix = write_dataset(folder / "d", documents)
    arguments: dict[str, Any] = {"seq_length": seq_length, "seed": seed, "vocab_size": 400}
    if sum(lengths) < seq_length + 1:
        with pytest.raises(ConfigError, match="one sample needs"):
            make(folder, text=None, path=str(prefix), **arguments)
        return
    index = make(folder, text=None, path=str(prefix), **arguments)
    assert inspect_dataset(prefix).tokens == index.tokens == sum(lengths)
    whole = msgspec.structs.replace(index, samples=index.block_samples)
    batches = reader(whole, micro=1, total=1)
    for iteration in (1, index.block_samples // 2 + 1, index.block_samples):
        batch = batches.micro_batch(iteration, 0)
        assert batch["tokens"].shape == (1, seq_length)
        steps = batch["labels"] - batch["tokens"]
        ends = {part[-1] for part in documents}
        # Inside a document the next token is one more; anything else happens at a document's end.
        assert all(
            int(step) == 1 or int(token) in ends
            for step, token in zip(steps[0], batch["tokens"][0], strict=True)
        )

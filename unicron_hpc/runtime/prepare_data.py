"""Makes the data ready once per run, before ranks start: indexed dataset and sample order.

    python -m unicron_hpc.runtime.prepare_data '{"text": "/data/a.txt", "out_dir": ..., ...}'

takes the arguments of `prepare` as JSON and prints the `DataIndex` as JSON.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import shutil
import struct
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

from unicron_hpc.config.sections import BYTE_TOKENS
from unicron_hpc.errors import ConfigError, UnicronError
from unicron_hpc.runtime.data import DataIndex, block_folder, build_block, token_error

#: Token that ends a document; the bytes are 0 to 255.
END_OF_DOCUMENT = BYTE_TOKENS - 1
#: A block has at least so many samples, so that a small text does not make thousands of blocks.
_BLOCK_SAMPLES = 1 << 16
#: So many bytes of a given dataset are searched for tokens outside the vocabulary; what lies behind them
#: is checked when it is read.
_SEARCHED_BYTES = 4 << 30
_BLANK_LINES = re.compile(rb"\r?\n(?:[ \t]*\r?\n)+")
_IDX_HEADER = struct.Struct("<9sQBQQ")


class _Size(msgspec.Struct, frozen=True):
    """What an `.idx` file says: tokens, documents and the type of a token."""

    tokens: int
    documents: int
    dtype: str


def prepare(
    *,
    text: Path | None,
    path: str | None,
    seq_length: int,
    samples_needed: int,
    seed: int,
    vocab_size: int,
    out_dir: Path,
) -> DataIndex:
    """Build what is not there yet, and say how ranks open it (`data.open_micro_batches`).

    Needs no `torch.distributed`. What exists and is whole is kept; files and folders get their names only
    when they are complete, so an interrupted run leaves nothing that could be mistaken for data.

    Parameters
    ----------
    text
        A text file. Each byte is a token; a blank line ends a document, and so does the end of the file.
    path
        Instead of `text`: an existing indexed dataset, without `.bin` and `.idx`.
    seq_length
        Tokens in a sample.
    samples_needed
        train_iters * global_batch_size.
    seed
        Seed of the sample order.
    vocab_size
        Tokens that the model knows.
    out_dir
        Folder on the shared file system for everything that is built.

    Raises
    ------
    ConfigError
        When the data is absent, unreadable, damaged, too short for one sample, or has tokens outside
        the vocabulary.
    UnicronError
        When `out_dir` cannot be written.
    """
    if (text is None) == (path is None):
        raise ConfigError("exactly one of data.text and data.path is needed")
    try:
        out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if text is not None:
            prefix, size = _text_dataset(text, seq_length, vocab_size, out_dir)
        else:
            prefix, size = _given_dataset(Path(str(path)), seq_length, vocab_size)
        return _sample_order(prefix, size, seq_length, samples_needed, seed, vocab_size, out_dir)
    except OSError as error:
        raise UnicronError(
            f"the data cannot be made ready: {error}",
            where=str(out_dir),
            hint="Check free space and permissions.",
        ) from error


def _text_dataset(text: Path, seq_length: int, vocab_size: int, out_dir: Path) -> tuple[Path, _Size]:
    if vocab_size < BYTE_TOKENS:
        raise ConfigError(
            f"model.vocab_size is {vocab_size}, the byte tokenizer has {BYTE_TOKENS} tokens",
            hint="Leave model.vocab_size out, or raise it.",
        )
    try:
        with text.open("rb") as stream:
            name = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"data.text cannot be read: {error.strerror}",
            where=str(text),
            hint="Give the path of a text file.",
        ) from error
    prefix = out_dir / f"{re.sub(r'[^A-Za-z0-9.-]', '_', text.stem)}-{name}"
    try:
        size = inspect_dataset(prefix)
    except ConfigError:
        _build(text, prefix)
        size = inspect_dataset(prefix)
    _long_enough(size, seq_length, str(text))
    return prefix, size


def _given_dataset(prefix: Path, seq_length: int, vocab_size: int) -> tuple[Path, _Size]:
    if prefix.suffix in (".bin", ".idx"):
        raise ConfigError(
            "data.path has no ending: it stands for two files",
            where=str(prefix),
            hint=f"Write {prefix.with_suffix('')}.",
        )
    size = inspect_dataset(prefix)
    _long_enough(size, seq_length, str(prefix))
    largest, smallest = _extreme_tokens(_with(prefix, ".bin"), size.dtype)
    if largest >= vocab_size:
        raise token_error(str(prefix), largest, vocab_size)
    if smallest < 0:
        raise ConfigError(f"the data contains token {smallest}", where=str(prefix))
    return prefix, size


def _with(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _long_enough(size: _Size, seq_length: int, where: str) -> None:
    if size.tokens < seq_length + 1:
        raise ConfigError(
            f"the data has {size.tokens} tokens, one sample needs {seq_length + 1} (seq_length and one more)",
            where=where,
            hint="Lower model.seq_length, or use more data.",
        )


def inspect_dataset(prefix: Path) -> _Size:
    """Check that `.idx` is sound and that `.bin` is as long as it says.

    Raises
    ------
    ConfigError
        Saying which file is absent, unreadable or does not fit.
    """
    idx, data = _with(prefix, ".idx"), _with(prefix, ".bin")
    try:
        with idx.open("rb") as stream, data.open("rb"):
            header = stream.read(_IDX_HEADER.size)
            idx_bytes, data_bytes = idx.stat().st_size, data.stat().st_size
            if len(header) < _IDX_HEADER.size:
                raise ConfigError(f"the index is cut off after {idx_bytes} bytes", where=str(idx))
            magic, version, code, sequences, marks = _IDX_HEADER.unpack(header)
            if magic != b"MMIDIDX\x00\x00" or version != 1:
                raise ConfigError("not the index of a Megatron dataset", where=str(idx))
            if code not in {kind.value for kind in DType} or not np.issubdtype(
                DType.dtype_from_code(code), np.integer
            ):
                raise ConfigError(f"token type {code} is not an integer type", where=str(idx))
            # Lengths, pointers, document marks and, with several modalities, a byte per sequence.
            needed = _IDX_HEADER.size + 12 * sequences + 8 * marks
            if idx_bytes not in (needed, needed + sequences):
                raise ConfigError(f"the index has {idx_bytes} bytes, {needed} expected", where=str(idx))
            lengths = np.fromfile(stream, dtype=np.int32, count=sequences)
            stream.seek(8 * sequences, os.SEEK_CUR)
            documents = np.fromfile(stream, dtype=np.int64, count=marks)
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be read: {error.strerror}",
            where=str(prefix),
            hint="data.path is the path of the .bin and .idx files without the ending.",
        ) from error
    tokens = int(lengths.sum(dtype=np.int64))
    if (sequences and int(lengths.min()) < 0) or not marks or int(documents[-1]) != sequences:
        raise ConfigError("the index contradicts itself", where=str(idx))
    expected = tokens * DType.size(code)
    if data_bytes != expected:
        raise ConfigError(
            f"the data has {data_bytes} bytes, its index says {expected}",
            where=str(data),
            hint="The .bin and .idx files do not belong together, or one was copied in part.",
        )
    return _Size(tokens, marks - 1, DType.dtype_from_code(code).__name__)


def _extreme_tokens(data: Path, dtype: str) -> tuple[int, int]:
    """Largest and smallest token of the first `_SEARCHED_BYTES`."""
    tokens = np.memmap(data, dtype=dtype, mode="r")[: _SEARCHED_BYTES // np.dtype(dtype).itemsize]
    step = 1 << 24
    parts = [tokens[start : start + step] for start in range(0, len(tokens), step)]
    return max(int(part.max()) for part in parts), min(int(part.min()) for part in parts)


def _build(text: Path, prefix: Path) -> None:
    """Make the indexed dataset of a text; `.idx` gets its name last."""
    building = prefix.with_name(f".{prefix.name}-{uuid.uuid4().hex}")
    data, idx = _with(building, ".bin"), _with(building, ".idx")
    try:
        builder = IndexedDatasetBuilder(str(data), dtype=DType.optimal_dtype(BYTE_TOKENS))
        for document in _documents(text):
            tokens = np.empty(len(document) + 1, dtype=np.int64)
            tokens[:-1] = np.frombuffer(document, dtype=np.uint8)
            tokens[-1] = END_OF_DOCUMENT
            builder.add_document(tokens, [len(tokens)])
        builder.finalize(str(idx))
        for built in (data, idx):
            built.chmod(0o600)
            with built.open("rb+") as stream:
                os.fsync(stream.fileno())
        data.rename(_with(prefix, ".bin"))
        idx.rename(_with(prefix, ".idx"))
    finally:
        data.unlink(missing_ok=True)
        idx.unlink(missing_ok=True)


def _documents(text: Path) -> Iterator[bytes]:
    """Pieces between blank lines."""
    if text.stat().st_size == 0:
        return
    with text.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = 0
        for gap in _BLANK_LINES.finditer(content):
            if gap.start() > start:
                yield content[start : gap.start()]
            start = gap.end()
        if start < len(content):
            yield content[start:]


def _sample_order(
    prefix: Path, size: _Size, seq_length: int, samples: int, seed: int, vocab_size: int, out_dir: Path
) -> DataIndex:
    epochs = math.ceil(_BLOCK_SAMPLES / ((size.tokens - 1) // seq_length))
    stat = _with(prefix, ".idx").stat()
    identity = f"{prefix.absolute()}/{stat.st_size}/{stat.st_mtime_ns}/{seq_length}/{seed}/{vocab_size}"
    name = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    index = DataIndex(
        prefix=str(prefix.absolute()),
        cache=str(out_dir.absolute() / f"order-{name}"),
        seq_length=seq_length,
        vocab_size=vocab_size,
        seed=seed,
        samples=samples,
        block_samples=(epochs * size.tokens - 1) // seq_length,
        tokens=size.tokens,
        documents=size.documents,
    )
    Path(index.cache).mkdir(exist_ok=True, mode=0o700)
    for block in range(math.ceil(samples / index.block_samples)):
        _build_block(index, block)
    return index


def _build_block(index: DataIndex, block: int) -> None:
    folder = block_folder(index, block)
    if folder.is_dir():
        return
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=index.cache))
    try:
        build_block(index, block, building)
        building.rename(folder)
    except OSError:
        # Another job with the same data may have been first.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    seq_length: int
    samples_needed: int
    seed: int
    vocab_size: int
    out_dir: str
    text: str | None = None
    path: str | None = None


def main(arguments: list[str]) -> int:
    """`prepare` as a process of its own, for callers that must not import torch."""
    try:
        request = msgspec.json.decode(arguments[0] if arguments else "", type=_Request)
    except msgspec.DecodeError as error:
        print(f"one argument is needed, the request as JSON: {error}", file=sys.stderr)
        return 2
    try:
        index = prepare(
            text=None if request.text is None else Path(request.text),
            path=request.path,
            seq_length=request.seq_length,
            samples_needed=request.samples_needed,
            seed=request.seed,
            vocab_size=request.vocab_size,
            out_dir=Path(request.out_dir),
        )
    except UnicronError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(msgspec.json.encode(index).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

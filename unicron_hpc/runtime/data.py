"""The micro-batches of a training: which samples they hold depends on their number only.

Samples come from Megatron's `GPTDataset`, in blocks. A block is a whole number of epochs, chosen from the
data alone, with its own shuffle from (seed, block). So unlike one `GPTDataset` for the whole run, the
order does not change when `train_iters` does, and a resumed run sees what the first would have seen.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import Split

from unicron_hpc.errors import ConfigError, UnicronError


class DataIndex(msgspec.Struct, frozen=True):
    """Everything a rank needs to open the data that `prepare_data.prepare` made ready.

    Attributes
    ----------
    prefix
        The indexed dataset: path of `.bin` and `.idx` without the ending.
    cache
        Folder of the blocks' indices.
    seq_length
        Tokens in a sample.
    vocab_size
        Token ids are below this.
    seed
        Seed of the sample order.
    samples
        Samples made ready, counted from 0.
    block_samples
        Samples of a block.
    tokens, documents
        Size of the dataset.
    """

    prefix: str
    cache: str
    seq_length: int
    vocab_size: int
    seed: int
    samples: int
    block_samples: int
    tokens: int
    documents: int


class MicroBatches:
    """Reads micro-batches; nothing is shared with other ranks and nothing is read ahead."""

    def __init__(self, index: DataIndex, *, micro_batch_size: int, global_batch_size: int) -> None:
        if micro_batch_size < 1 or global_batch_size % micro_batch_size != 0:
            raise ConfigError(
                f"global_batch_size {global_batch_size} is no multiple of micro_batch_size {micro_batch_size}"
            )
        self._index = index
        self._micro_batch_size = micro_batch_size
        self._global_batch_size = global_batch_size
        # Neighbouring iterations touch at most two blocks.
        self._block = functools.lru_cache(maxsize=2)(functools.partial(open_block, index))

    def micro_batch(self, iteration: int, index: int) -> dict[str, torch.Tensor]:
        """Micro-batch `index` of `iteration`.

        Parameters
        ----------
        iteration
            Number of the update, from 1.
        index
            Global number of the micro-batch within the iteration, from 0 to
            global_batch_size / micro_batch_size - 1, whichever replica computes it.

        Returns
        -------
        dict
            `tokens`, `labels`, `position_ids` (int64) and `loss_mask` (float32), each of shape
            [micro_batch_size, seq_length]: samples (iteration - 1) * global_batch_size +
            index * micro_batch_size + j.

        Raises
        ------
        UnicronError
            When that lies beyond the samples made ready, or a token is outside the vocabulary.
        """
        if iteration < 1 or not 0 <= index < self._global_batch_size // self._micro_batch_size:
            raise UnicronError(f"there is no micro-batch {index} of iteration {iteration}")
        first = (iteration - 1) * self._global_batch_size + index * self._micro_batch_size
        if first + self._micro_batch_size > self._index.samples:
            raise UnicronError(
                f"iteration {iteration} needs samples up to {first + self._micro_batch_size},"
                f" {self._index.samples} were made ready",
                where=self._index.prefix,
            )
        samples = [self._sample(number) for number in range(first, first + self._micro_batch_size)]
        batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
        largest = max(int(batch["tokens"].max()), int(batch["labels"].max()))
        if largest >= self._index.vocab_size:
            raise token_error(self._index.prefix, largest, self._index.vocab_size)
        return batch

    def _sample(self, number: int) -> dict[str, torch.Tensor]:
        block, offset = divmod(number, self._index.block_samples)
        sample: dict[str, torch.Tensor] = self._block(block)[offset]
        return sample


def open_micro_batches(index: DataIndex, *, micro_batch_size: int, global_batch_size: int) -> MicroBatches:
    """Open prepared data in a rank; files are memory-mapped, on first use."""
    return MicroBatches(index, micro_batch_size=micro_batch_size, global_batch_size=global_batch_size)


def token_error(prefix: str, token: int, vocab_size: int) -> ConfigError:
    """The error for a token that the model has no embedding for."""
    return ConfigError(
        f"the data contains token {token}, the vocabulary ends at {vocab_size - 1}",
        where=prefix,
        hint=f"Set model.vocab_size to at least {token + 1}, or use data made with this vocabulary.",
    )


def block_folder(index: DataIndex, block: int) -> Path:
    """Where the indices of `block` lie."""
    return Path(index.cache) / f"block-{block:05d}"


def open_block(index: DataIndex, block: int) -> GPTDataset:
    """The `GPTDataset` of a block whose indices exist.

    Raises
    ------
    UnicronError
        When they do not, or cannot be mapped.
    """
    folder = block_folder(index, block)
    # A data set that finds no indices would build them here, in every rank at once.
    if not folder.is_dir():
        raise UnicronError("the sample order was not made ready", where=str(folder), hint="Submit again.")
    try:
        return build_block(index, block, folder)
    except (OSError, ValueError, AssertionError) as error:
        raise UnicronError(
            f"the sample order cannot be read: {error}",
            where=str(folder),
            hint="Delete the folder; it is built again on the next start.",
        ) from error


def build_block(index: DataIndex, block: int, folder: Path) -> GPTDataset:
    """Megatron's data set for one block; builds its indices in `folder` unless they are there."""
    config = GPTDatasetConfig(
        random_seed=_block_seed(index.seed, block),
        sequence_length=index.seq_length,
        blend=([index.prefix], None),
        split="1,0,0",
        path_to_cache=str(folder),
        tokenizer=_Vocabulary(index.vocab_size),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low_level = GPTDataset.build_low_level_dataset(index.prefix, config)
    every_document = np.arange(GPTDataset.numel_low_level_dataset(low_level), dtype=np.int32)
    dataset = GPTDataset(low_level, index.prefix, every_document, index.block_samples, Split.train, config)
    if len(dataset) < index.block_samples:
        raise ValueError(f"{len(dataset)} samples where {index.block_samples} were expected")
    return dataset


def _block_seed(seed: int, block: int) -> int:
    """A 32-bit seed; neighbouring seeds of the user must not share blocks."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{block}".encode(), digest_size=4).digest(), "little")


class _Vocabulary:
    """The part of a tokenizer that Megatron's data set asks for; the data is tokens already."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        # Neither is used: no masks are reset at ends of documents, and every sample is full.
        self.eod = -1
        self.pad = -2
        self.unique_identifiers: dict[str, Any] = {"class": "unicron_hpc", "vocab_size": vocab_size}

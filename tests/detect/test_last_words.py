"""Which lines of a log's end tell of an error."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.detect.last_words import error_lines

CHAIN = """2026-11-30 12:00:00 INFO unicron: epoch 2
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise KeyError("x")
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    lookup()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
"""


def test_the_exceptions_of_a_chain_are_found_without_their_modules_and_frames() -> None:
    assert error_lines(CHAIN) == [
        "KeyError: 'x'",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ]


def test_an_abort_of_c_plus_plus_is_found_with_what_it_says() -> None:
    text = (
        "iteration 5\nterminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: an illegal memory access was encountered\n"
        "Exception raised from c10_cuda_check at CUDAException.cpp:43\nframe #0: ...\n"
    )
    assert error_lines(text)[-1] == "what():  CUDA error: an illegal memory access was encountered"


def test_ordinary_lines_are_no_errors_whatever_words_they_use() -> None:
    text = "loss nan_to_num done\n2026-11-30 INFO x: connection reset 0\nwarning: out of memory is near\n"
    assert error_lines(text) == []


def test_a_prefix_of_the_rank_hides_nothing() -> None:
    prefixed = "".join(f"[rank3]: {line}\n" for line in CHAIN.splitlines())
    assert error_lines(prefixed) == error_lines(CHAIN)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    assert all(line.strip() for line in error_lines(text + "\nTraceback (most recent call last):\n" + text))

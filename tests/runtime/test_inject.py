"""What a drill orders happens in a rank at its iteration, once; without an order nothing does."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from unicron_hpc.runtime import inject
from unicron_hpc.runtime.environment import RUN_FOLDER, SEAT
from unicron_hpc.runtime.inject import Injections, exception_of
from unicron_hpc.supervisor import drill_notes
from unicron_hpc.supervisor.rank_messages import Inject

ORDER = "00ff" * 3
ONES = torch.ones(2)


@pytest.fixture
def injections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Injections:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    monkeypatch.setenv(SEAT, "n2:0")
    return Injections()


def test_without_an_order_the_output_is_what_it_was(injections: Injections) -> None:
    injections.data(1)
    assert injections.forward(1, ONES) is ONES


def test_an_exception_comes_in_its_iteration_and_once(injections: Injections, tmp_path: Path) -> None:
    injections.arm(Inject(ORDER, "exception-forward", iteration=3, text="ValueError: on purpose"))
    assert injections.forward(2, ONES) is ONES
    assert drill_notes.read(tmp_path, ORDER, "injected") is None
    with pytest.raises(ValueError, match="on purpose"):
        injections.forward(3, ONES)
    note = drill_notes.read(tmp_path, ORDER, "injected")
    assert note is not None
    assert (note.node, note.detail) == ("n2", "in iteration 3")
    assert injections.forward(3, ONES) is ONES


def test_a_broken_data_loader_breaks_where_data_is_read_only(injections: Injections) -> None:
    injections.arm(Inject(ORDER, "exception-data"))
    assert injections.forward(1, ONES) is ONES
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        injections.data(1)


def test_nan_reaches_every_element_of_one_output(injections: Injections) -> None:
    injections.arm(Inject(ORDER, "nan"))
    assert bool(injections.forward(1, ONES).isnan().all())
    assert injections.forward(1, ONES) is ONES


def test_memory_without_a_cgroup_ends_at_a_limit_of_the_ranks_own(
    injections: Injections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inject, "_ROOM", 64 * 2**20)
    before = resource.getrlimit(resource.RLIMIT_AS)
    injections.arm(Inject(ORDER, "oom"))
    with pytest.raises(MemoryError, match="drill"):
        injections.forward(1, ONES)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_memory_that_nobody_limits_is_not_taken_for_ever(injections: Injections) -> None:
    injections.arm(Inject(ORDER, "oom", amount=32 * 2**20))
    with pytest.raises(RuntimeError, match="there is no limit"):
        injections.forward(1, ONES)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("ValueError: bad: worse", "ValueError", "bad: worse"),
        ("OutOfMemoryError: CUDA out of memory", "OutOfMemoryError", "CUDA out of memory"),
        ("NVLinkError: link 3", "NVLinkError", "link 3"),
        ("SystemExit: 3", "SystemExit", "3"),  # no Exception: it must not end the rank unseen
        ("UnicodeDecodeError: bad byte", "UnicodeDecodeError", "bad byte"),
        ("just words", "RuntimeError", "just words"),
        ("two words: more", "RuntimeError", "two words: more"),
    ],
)
def test_any_exception_can_be_named(text: str, name: str, words: str) -> None:
    made = exception_of(text)
    assert (type(made).__name__, str(made)) == (name, words)
    assert isinstance(made, Exception)

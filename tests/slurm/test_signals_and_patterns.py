"""`--signal` values and filename patterns."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slurm.field_cases import case, cases
from unicron_hpc.errors import ConfigError
from unicron_hpc.slurm.patterns import expand_pattern, literal
from unicron_hpc.slurm.signals import SignalSpec, parse_signal


def test_a_signal_without_a_time_comes_sixty_seconds_before_the_end() -> None:
    given_, expected = case("signal-07")
    assert parse_signal(given_["--signal"]) == SignalSpec(signal.SIGUSR1, expected["seconds"], False)


def test_a_time_that_slurm_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="65535"):
        parse_signal(case("signal-09")[0]["--signal"])


def test_signals_by_name_number_and_for_the_batch_script_only() -> None:
    assert parse_signal("B:TERM@120") == SignalSpec(signal.SIGTERM, 120, True)
    assert parse_signal("10@5").signal is signal.SIGUSR1
    assert parse_signal("SIGUSR2").signal is signal.SIGUSR2


@pytest.mark.parametrize("word", ["KILL", "9@60", "B:STOP@60", "CHLD"])
def test_a_signal_at_which_a_run_cannot_end_in_order_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="cannot end in order"):
        parse_signal(word)


@pytest.mark.parametrize("text", ["", "@60", "NOPE", "USR1@", "USR1@-1", "X:USR1", "USR1 @3"])
def test_what_is_no_signal_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_signal(text)


@pytest.mark.parametrize(
    ("given_", "expected"), [c for c in cases("filename_pattern") if isinstance(c.values[1], str)]
)
def test_filename_patterns_from_the_field(given_: dict[str, Any], expected: str) -> None:
    letters = {"job_name": "x", "job_id": "j", "restart": "r", "task": "t"}
    values = {letters[key]: str(value) for key, value in given_.items() if key in letters}
    assert expand_pattern(given_["pattern"], values) == expected


def test_numbers_are_padded_to_the_width_given() -> None:
    assert expand_pattern("%4j-%N", {"j": "12", "N": "n1"}) == "0012-n1"


@given(st.text(alphabet="abj%x4/ "))
def test_a_literal_path_stands_for_itself(path: str) -> None:
    assert expand_pattern(literal(path), {"j": "1", "x": "name"}) == path


def test_a_path_with_a_backslash_cannot_be_in_a_pattern() -> None:
    with pytest.raises(ConfigError, match="backslash"):
        literal("a\\b")

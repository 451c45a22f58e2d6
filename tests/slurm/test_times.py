"""Slurm's notation for lengths of time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slurm.field_cases import cases
from unicron_hpc.errors import ConfigError
from unicron_hpc.slurm.times import format_time, parse_time, parse_time_left


@pytest.mark.parametrize(("text", "expected"), cases("time"))
def test_times_from_the_field(text: str, expected: dict[str, Any]) -> None:
    assert parse_time_left(text.split(" (")[0]) == expected["seconds"]


@pytest.mark.parametrize(("text", "expected"), cases("time_error"))
def test_what_is_no_time_is_refused_and_named(text: str, expected: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=expected["error"]) as caught:
        parse_time(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", ":", "1-", "-", "1:2:3:4", "1-2:3:4:5", "1d", "1.5", "٣", "1 2", "INVALID"]
)
def test_other_forms_are_no_limit_either(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_time(text)


@pytest.mark.parametrize("text", ["UNLIMITED", "infinite", "-1"])
def test_words_for_no_limit(text: str) -> None:
    assert parse_time(text) is None


def test_minutes_alone_are_minutes_but_with_days_they_are_hours() -> None:
    assert parse_time("2") == 120
    assert parse_time("1-2") == 26 * 3600


def test_a_limit_beyond_what_slurm_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than Slurm can hold"):
        parse_time("99999999999999")


@given(st.integers(0, 10**9))
def test_what_is_printed_is_read_back(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


@given(st.text())
def test_a_figure_of_squeues_never_raises(text: str) -> None:
    left = parse_time_left(text)
    assert left is None or left >= 0

"""What stands before a message is taken off, and what it tells is kept."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detect.field_cases import CASES
from unicron_hpc.detect.prefixes import take_apart, without_colours
from unicron_hpc.detect.table import default_table

TEN = dt.datetime(2025, 3, 3, 10, tzinfo=dt.UTC).timestamp()
LINES = [case["input"] for case in CASES.values() if case["kind"] == "log_line" and "\n" not in case["input"]]

#: What launchers, loggers and kernels put before a message; time, rank and host that it tells.
HEADS = [
    ("", None, None, ""),
    ("2025-03-03T10:00:00.000Z ", TEN, None, ""),
    ("2025-03-03T11:00:00+01:00 ", TEN, None, ""),
    ("2025-03-03 10:00:00,000 - ERROR - ", TEN, None, ""),
    ("[2025-03-03 10:00:00,000] [ERROR] ", TEN, None, ""),
    ("2025/03/03 10:00:00 ", TEN, None, ""),
    ("[Mon Mar  3 10:00:00 2025] ", TEN, None, ""),
    ("Mar  3 10:00:00 gpu07 kernel: [ 1234.567890] ", TEN, None, "gpu07"),
    ("Mar  3 10:00:00 gpu07 slurmstepd[4711]: ", TEN, None, "gpu07"),
    ("I0303 10:00:00.000000 ", TEN, None, ""),
    ("[rank3]:[E303 10:00:00.000000000 ", TEN, 3, ""),
    ("[rank3]: ", None, 3, ""),
    ("[default3]:", None, 3, ""),
    ("3: ", None, 3, ""),
    ("  3: ", None, 3, ""),
    ("[1,3]<stderr>:", None, 3, ""),
    ("[3]<stderr>:", None, 3, ""),
    ("2025-03-03T10:00:00.000000000Z stderr F [rank3]: ", TEN, 3, ""),
    ("[rank3]: 2025-03-03 10:00:00 ERROR: ", TEN, 3, ""),
    ("2025-03-03 10:00:00 [rank3]: ", TEN, 3, ""),
    ("[ 1234.567890] ", None, None, ""),
    ("6,1234,5678901,-;", None, None, ""),
    ("gpu07: [rank3]: ", None, 3, "gpu07"),
    ("gpu07: [ 1234.567890] ", None, None, "gpu07"),
    ("gpu07:90:140 [1] ", None, None, "gpu07"),
    ("\x1b[31mERROR:root:\x1b[0m", None, None, ""),
]


@pytest.mark.parametrize(("head", "time", "rank", "host"), HEADS)
def test_the_head_of_a_line_is_read_and_taken_off(
    head: str, time: float | None, rank: int | None, host: str
) -> None:
    line = take_apart(f"{head}the message: 3 words", 2025)
    assert (line.text, line.time, line.rank, line.host) == ("the message: 3 words", time, rank, host)


@pytest.mark.parametrize("head", [head for head, *_ in HEADS])
def test_what_a_line_means_does_not_depend_on_what_stands_before_it(head: str) -> None:
    for text in LINES:
        found = default_table().find(take_apart(head + text, 2025).text)
        assert found == default_table().find(text), text


@pytest.mark.parametrize(
    "text",
    [
        '  File "train.py", line 3, in <module>',
        "    raise ValueError(x)",
        "Fatal Python error: Aborted",
        "error: something",
        "12:00 is noon",
        "node3 said nothing",
    ],
)
def test_a_line_without_a_head_stays_as_it_is(text: str) -> None:
    assert take_apart(text).text == text


def test_the_indentation_behind_a_head_is_the_messages_own() -> None:
    assert take_apart('[rank0]:   File "train.py", line 3').text == '  File "train.py", line 3'


def test_a_rank_inside_the_message_counts_where_none_stands_before_it() -> None:
    assert take_apart("[E ProcessGroupNCCL.cpp:5] [PG 0 Rank 7] Watchdog").rank == 7
    assert take_apart("[rank1]: [Rank 7] Watchdog").rank == 1


@pytest.mark.parametrize("time", ["2025-02-30 10:00:00", "2025-03-03 25:00:00", "Feb 31 10:00:00"])
def test_a_time_that_no_clock_shows_is_none(time: str) -> None:
    assert take_apart(f"{time} message", 2025).time is None


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=120))
def test_any_text_can_be_taken_apart(text: str) -> None:
    line = take_apart(text)
    assert line.text in without_colours(text)

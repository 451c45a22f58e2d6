"""Appending without waiting for the disk; a pipe that nobody reads stands for a disk that hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unicron_hpc.report import appender as module
from unicron_hpc.report.appender import Appender

LINE = b"x" * 9_999 + b"\n"


def hanging(tmp_path: Path) -> tuple[Appender, Path]:
    """An appender whose writes hang after some 64 kB."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return Appender(path), path


def read_all(path: Path, count: int) -> bytes:
    with open(path, "rb") as pipe:
        return pipe.read(count)


def test_a_disk_that_hangs_does_not_hold_up_who_writes_and_gets_all_in_order_afterwards(
    tmp_path: Path,
) -> None:
    appender, path = hanging(tmp_path)
    lines = [b"%03d" % number + LINE for number in range(40)]
    for line in lines:
        appender.append_line(line)
    assert not appender.flush(0.05)
    assert read_all(path, sum(map(len, lines))) == b"".join(lines)
    assert appender.flush(10.0)
    assert appender.close()


def test_closing_waits_for_a_disk_that_hangs_no_longer_than_it_may(tmp_path: Path) -> None:
    appender, path = hanging(tmp_path)
    for _ in range(20):
        appender.append_line(LINE)
    assert not appender.close(0.05)
    appender.append_line(b"too late")
    assert read_all(path, 20 * len(LINE)) == LINE * 20
    assert appender.close(10.0)


def test_what_waits_for_a_slow_disk_is_bounded_and_the_loss_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BACKLOG", 10 * len(LINE))
    appender, path = hanging(tmp_path)
    for _ in range(200):
        appender.append_line(LINE)
    assert "lines are lost" in caplog.text
    while not appender.flush(0.01):
        os.read(descriptor := os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 16)
        os.close(descriptor)
    appender.append_line(b"after\n")
    assert appender.flush(10.0)
    assert appender.close()


def test_what_the_disk_refuses_is_tried_again_without_a_new_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.01)
    write, refused = os.write, iter([True, True])

    def full_twice(descriptor: int, data: bytes) -> int:
        if next(refused, False):
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full_twice)
    appender = Appender(tmp_path / "log")
    appender.append_line(b"kept\n")
    assert appender.flush(10.0)
    assert (tmp_path / "log").read_bytes() == b"kept\n"
    appender.close()

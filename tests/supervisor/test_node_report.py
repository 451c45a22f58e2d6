"""Measuring a node: real files, real programs in place of the driver's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.supervisor.events import within
from tests.supervisor.zygotes import gone
from unicron_hpc.supervisor import node_report
from unicron_hpc.supervisor.node_report import Gpus, count_gpus, measure, read_gpus


def program(folder: Path, script: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


def test_gpus_are_counted_by_their_addresses(tmp_path: Path) -> None:
    script = 'test "$1" = --query-gpu=index,pci.bus_id || exit 9\n'
    script += "echo '0, 00000000:1B:00.0'; echo '1, 00000000:B3:00.0'"
    found = within(count_gpus(program(tmp_path, script)))
    assert found == Gpus(("00000000:1b:00.0", "00000000:b3:00.0"))


def test_a_gpu_without_a_handle_is_not_counted_and_told() -> None:
    said = "Unable to determine the device handle for GPU0000:B3:00.0: Unknown Error"
    assert read_gpus(f"0, 00000000:1B:00.0\n{said}\n", 255) == Gpus(("00000000:1b:00.0",), said)


def test_no_device_is_none_and_a_broken_driver_is_not_counted() -> None:
    assert read_gpus("No devices were found\n", 6).buses == ()
    broken = read_gpus("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9)
    assert broken.buses is None
    assert "couldn't communicate" in broken.problem


def test_a_driver_that_hangs_is_given_up(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 3600"
    found = within(count_gpus(program(tmp_path, script), seconds=0.3))
    assert found == Gpus(seconds=0.3)
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("content", [None, "no program"])
def test_without_a_driver_nothing_is_counted(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "none"
    if content is not None:
        path.write_bytes(b"\x7fELF broken")
        path.chmod(0o700)
    assert within(count_gpus(str(path))).buses is None


def test_the_run_folder_is_written_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    report = within(measure(tmp_path, None))
    assert report.write_error is None
    assert report.write_seconds is not None
    assert report.gpus is None
    assert min(report.memory or 0, report.shared_memory or 0, report.disk or 0) > 0
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_run_folder_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    report = within(measure(tmp_path, Gpus(("a", "b"))))
    assert report.write_error is not None
    assert report.gpus == 2


def test_a_run_folder_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(node_report, "_write", lambda folder: os.read(read, 1))
    monkeypatch.setattr(node_report, "LIMIT", 0.1)
    try:
        assert within(measure(tmp_path, None)).folder_seconds == 0.1
    finally:
        os.close(write)

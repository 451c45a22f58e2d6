"""The agent's log does not hold up its agent."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from unicron_hpc.supervisor.agent_log import AgentLog


def logger(path: Path) -> tuple[logging.Logger, AgentLog]:
    handler, log = AgentLog(path), logging.Logger("agent")
    log.addHandler(handler)
    return log, handler


def test_a_record_is_a_line_with_time_level_and_name(tmp_path: Path) -> None:
    log, handler = logger(tmp_path / "log")
    log.warning("node %s is lost", "n\ud800")
    handler.close()
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.endswith(" WARNING agent: node n? is lost")


def test_a_disk_that_hangs_does_not_hold_up_who_logs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody reads: writes hang after 64 kB
    log, handler = logger(tmp_path / "pipe")
    for _ in range(100):
        log.warning("x" * 10_000)
    with open(tmp_path / "pipe", "rb") as pipe:
        assert len(pipe.read(1_000_000)) == 1_000_000
    handler.close()

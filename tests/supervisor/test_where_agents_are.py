"""What agents find in the run folder: allocation, each other, the outcome; and their own address."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from unicron_hpc.errors import UnicronError
from unicron_hpc.supervisor import directory
from unicron_hpc.supervisor.address import LOOPBACK, interface_of, own_address
from unicron_hpc.supervisor.allocation import ALLOCATION_FILE, Allocation, read_allocation, write_allocation
from unicron_hpc.supervisor.outcome import Outcome, read_outcome

ALLOCATION = Allocation("4711", ("n1", "n2", "n3"), active=2, slots=4, batch_node="n1")


def test_the_allocation_is_read_as_it_was_written_and_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_allocation(tmp_path, Allocation("1", ("n9",), 1, 1))
        write_allocation(tmp_path, ALLOCATION)
    finally:
        os.umask(before)
    assert read_allocation(tmp_path) == ALLOCATION
    assert stat.S_IMODE((tmp_path / ALLOCATION_FILE).stat().st_mode) == 0o600
    assert ALLOCATION.on_slurm
    assert not Allocation("local-1", ("n1",), 1, 1).on_slurm


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"job_id": 7}', '{"job_id": "7", "nodes": "n1"}'])
def test_an_absent_or_damaged_allocation_is_an_error_that_names_the_file(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / ALLOCATION_FILE).write_text(content)
    with pytest.raises(UnicronError, match=ALLOCATION_FILE):
        read_allocation(tmp_path)


def test_agents_find_each_other_by_what_they_announced_last(tmp_path: Path) -> None:
    assert directory.addresses(tmp_path) == {}
    directory.announce(tmp_path, "n1", "tcp://10.0.0.1:1")
    directory.announce(tmp_path, "n2", "tcp://10.0.0.2:1")
    directory.announce(tmp_path, "n1", "tcp://10.0.0.1:2")
    assert directory.addresses(tmp_path) == {"n1": "tcp://10.0.0.1:2", "n2": "tcp://10.0.0.2:1"}
    assert stat.S_IMODE((tmp_path / directory.AGENTS).stat().st_mode) == 0o700


@pytest.mark.parametrize("content", ["", "{", "[]", "7", "{}", '{"node": "n2"}'])
def test_an_announcement_that_cannot_be_read_hides_no_other(tmp_path: Path, content: str) -> None:
    directory.announce(tmp_path, "n1", "tcp://10.0.0.1:1")
    (tmp_path / directory.AGENTS / "n2.json").write_text(content)
    (tmp_path / directory.AGENTS / ".n3.17").write_text(json.dumps({"node": "n3", "address": "half"}))
    assert directory.addresses(tmp_path) == {"n1": "tcp://10.0.0.1:1"}


def test_a_run_has_no_outcome_until_its_summary_is_there(tmp_path: Path) -> None:
    assert read_outcome(tmp_path) is None
    (tmp_path / "summary.json").write_text(
        json.dumps({"state": "failed", "exit_code": 1, "cause": "nan", "more": 1})
    )
    assert read_outcome(tmp_path) == Outcome("failed", 1, "nan")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", '{"state": "failed"}', '{"state": 1, "exit_code": [], "cause": 2}']
)
def test_a_damaged_summary_is_no_outcome(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    assert read_outcome(tmp_path) is None


def test_without_slurm_agents_talk_over_the_loopback_interface() -> None:
    assert own_address({}) == LOOPBACK
    assert interface_of(LOOPBACK) == "lo"


def test_the_address_is_the_one_on_the_way_to_where_the_step_was_started() -> None:
    address = own_address({"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.5"})
    assert address == "127.0.0.1"
    with socket.socket() as bound:
        bound.bind((address, 0))  # it is an address of this machine


def test_what_the_host_name_resolves_to_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """env-11 of the field's cases: `hostname --ip-address` has 127.0.1.1 first on many clusters."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a name was resolved")

    for name in ("gethostbyname", "gethostbyname_ex", "getaddrinfo", "gethostname", "getfqdn"):
        monkeypatch.setattr(socket, name, refuse)
    own_address({"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.5"})


def test_a_step_whose_origin_cannot_be_reached_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(UnicronError, match="SLURM_LAUNCH_NODE_IPADDR"):
        own_address({"SLURM_LAUNCH_NODE_IPADDR": "no address"})


def test_an_address_that_no_interface_has_is_told_apart() -> None:
    assert interface_of("192.0.2.77") is None
    assert interface_of("::1") is None

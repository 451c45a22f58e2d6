"""What becomes of nodes that were taken out: drained, left out later, given back, or nothing of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.events import within
from unicron_hpc.config import RecoverySettings
from unicron_hpc.detect.handling import Action, Case, Decision, decide
from unicron_hpc.detect.severity import LOST_CONNECTION, Blame, Finding, Method, Severity
from unicron_hpc.report.journal import EVENTS, Journal, read_lines
from unicron_hpc.slurm import bad_nodes, drain_request, giving_back, job_end
from unicron_hpc.slurm.drain import DrainResult
from unicron_hpc.supervisor import draining
from unicron_hpc.supervisor.allocation import Allocation
from unicron_hpc.supervisor.draining import Drains
from unicron_hpc.supervisor.incident import Evidence

NODES = tuple(f"n{number}" for number in range(1, 9))
ECC = Finding("ECC error", Severity.SEV1, Blame.NODE)
KILLED = Finding("killed (SIGKILL)", Severity.SEV2)


class Site:
    """A Slurm that does what it is told to, or refuses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.run_folder = folder / "runs" / "tiny-17"
        self.run_folder.mkdir(parents=True)
        self.refuses, self.wanted = False, ""
        self.asked: list[tuple[str, str]] = []
        self.given_back: list[str] = []
        monkeypatch.setattr(draining, "drain", self.drain)
        monkeypatch.setattr(job_end, "wanted", lambda job, node: self.wanted)
        monkeypatch.setattr(giving_back, "give_back", self.give_back)
        monkeypatch.delenv("UNICRON_DRAIN_REQUESTS", raising=False)
        self.recovery = RecoverySettings(node_timeout=0.05, heartbeat_interval=0.01, **settings)
        self.journal = Journal(self.run_folder)
        self.drains = Drains(
            Allocation("17", NODES, 6, 1, "n1"), self.journal, self.recovery, self.run_folder
        )

    def drain(self, node: str, reason: str, nodes: Sequence[str], *, job_id: str) -> DrainResult:
        self.asked.append((node, reason))
        return DrainResult(not self.refuses, "told so", node, reason, self.refuses)

    def give_back(self, job: str, node: str) -> tuple[bool, str]:
        self.given_back.append(node)
        return False, "Invalid node name specified"

    def out(self, node: str, finding: Finding, rank: int | None = None) -> None:
        evidence = Evidence(finding, Method.NODE_HEALTH, node, rank, "", 1e9)
        self.drains.taken_out(node, evidence, decide(Case(finding), self.recovery), 3)

    def events(self, kind: str) -> list[dict[str, Any]]:
        assert self.journal.flush_file(10.0)
        return [event for event in read_lines(self.run_folder / EVENTS) if event["type"] == kind]

    @property
    def bad(self) -> dict[str, bool]:
        """Nodes on the list, and whether they were drained."""
        return {entry.node: entry.drained for entry in bad_nodes.read(self.run_folder.parent)}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_bad_node_is_drained_left_out_later_and_given_back(site: Site) -> None:
    async def work() -> None:
        site.out("n2", ECC, rank=3)
        await site.drains.wait(5.0)

    within(work())
    ((node, reason),) = site.asked
    assert node == "n2"
    assert reason.startswith("unicron: ECC error job 17 2001-09-0")
    (result,) = site.events("drain_result")
    assert (result["drained"], result["message"], result["request"]) == (True, "told so", "")
    assert site.bad == {"n2": True}
    (back,) = site.events("node_given_back")
    assert (back["done"], back["message"]) == (False, "Invalid node name specified")


def test_a_refused_drain_leaves_a_request_and_the_node_with_the_job(site: Site) -> None:
    site.refuses = True

    async def work() -> None:
        site.out("n2", ECC)
        await site.drains.wait(5.0)

    within(work())
    (result,) = site.events("drain_result")
    assert result["drained"] is False
    assert Path(result["request"]) == site.run_folder / "drain-requests" / "17-n2.json"
    assert Path(result["request"]).exists()
    assert result["request"] in result["message"]
    assert site.bad == {"n2": False}
    assert site.given_back == []  # the next job would meet its fault


class TestNodesThatGoSilentTogether:
    def test_are_not_drained_though_they_are_lost_one_by_one(self, site: Site) -> None:
        async def work() -> None:
            for node in ("n2", "n3", "n4"):
                site.out(node, LOST_CONNECTION)
                await asyncio.sleep(0)  # the first could be drained by now
            await site.drains.wait(5.0)

        within(work())
        assert site.asked == []
        assert site.bad == {}
        withheld = site.events("drain_withheld")
        assert [event["node"] for event in withheld] == ["n2", "n3", "n4"]
        assert all("lost together" in event["reason"] for event in withheld)

    def test_are_three_at_least(self, site: Site) -> None:
        async def work() -> None:
            site.out("n2", LOST_CONNECTION)
            site.out("n3", LOST_CONNECTION)
            site.out("n4", ECC)
            await site.drains.wait(5.0)

        within(work())
        assert sorted(node for node, _ in site.asked) == ["n2", "n3", "n4"]

    def test_are_lost_at_the_same_time(self, site: Site) -> None:
        async def work() -> None:
            for node in ("n2", "n3", "n4"):
                site.out(node, LOST_CONNECTION)
                site.drains._silent[node] -= 1.0 if node == "n4" else 0.0
            await site.drains.wait(5.0)

        within(work())
        assert len(site.asked) == 3


def test_a_node_whose_silence_was_wanted_is_not_blamed(site: Site) -> None:
    site.wanted = "Slurm has the job as CANCELLED"

    async def work() -> None:
        site.out("n2", LOST_CONNECTION)
        await site.drains.wait(5.0)

    within(work())
    assert (site.asked, site.bad) == ([], {})
    assert site.events("drain_withheld")[0]["reason"] == "Slurm has the job as CANCELLED"


def test_a_node_on_trial_is_drained_when_it_is_found_to_have_been_the_node(site: Site) -> None:
    evidence = Evidence(KILLED, Method.PROCESS, "n2", 1, "")
    trial = Decision(Action.NODE_ON_TRIAL, Severity.SEV1, "new processes do not help", "")

    async def work() -> None:
        site.drains.taken_out("n2", evidence, trial, 3)
        await site.drains.wait(5.0)
        await site.drains.settled("n2", 0.01)
        assert site.asked == []
        site.drains.drain("n2", evidence, 4)
        await site.drains.settled("n2", 5.0)
        assert [node for node, _ in site.asked] == ["n2"]

    within(work())


def test_without_leave_to_drain_the_node_is_still_left_out_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, drain=False)

    async def work() -> None:
        site.out("n2", ECC)
        await site.drains.wait(5.0)

    within(work())
    assert (site.asked, site.bad) == ([], {"n2": False})
    assert site.events("drain_requested") == []


def refuses_to_write(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_drained_node_is_not_said_to_be_undrained_though_the_list_cannot_be_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr(bad_nodes, "add", refuses_to_write)
        site.out("n2", ECC)
        await site.drains.wait(5.0)

    within(work())
    assert [event["drained"] for event in site.events("drain_result")] == [True]
    assert site.given_back == ["n2"]
    (warned,) = site.events("node_warning")
    assert (warned["node"], "No space left" in warned["evidence"]) == ("n2", True)


def test_who_must_act_is_told_though_no_request_can_be_left(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr(drain_request, "leave", refuses_to_write)
        site.refuses = True
        site.out("n2", ECC)
        await site.drains.wait(5.0)

    within(work())
    (result,) = site.events("drain_result")
    assert result["message"].startswith("told so")
    assert "No space left" in result["message"]
    assert site.bad == {"n2": False}


def test_a_file_server_that_hangs_holds_up_no_drain_and_nobodys_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = threading.Event()
    monkeypatch.setattr(draining, "FILE_LIMIT", 0.05, raising=False)
    monkeypatch.setattr(bad_nodes, "add", lambda *_: back.wait(30.0))

    async def work() -> None:
        site.out("n2", ECC)
        await site.drains.wait(2.0)

    within(work())  # whose end waits for the threads of the loop's own pool
    assert not back.is_set()
    back.set()
    assert site.given_back == ["n2"]
    (warned,) = site.events("node_warning")
    assert "no answer within 0.05 s" in warned["evidence"]

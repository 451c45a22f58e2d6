"""Bad nodes after the job that met them: the list, later submissions, requests, and giving them back."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slurm.settings_for_tests import settings
from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import avoiding, bad_nodes, commands, drain_request, giving_back, job_end, queries
from unicron_hpc.slurm.bad_nodes import BadNode
from unicron_hpc.slurm.commands import Completed
from unicron_hpc.slurm.node_records import NodeRecord, parse_node_records
from unicron_hpc.slurm.states import parse_job_state, parse_node_state

FIXTURES = Path(__file__).parents[1] / "fixtures"
DAY = 86400.0
TAKEN = Completed((), "", "", 0)


def node(name: str, state: str = "IDLE", **more: float) -> NodeRecord:
    return NodeRecord(name, parse_node_state(state), "", "", more.get("booted"), more.get("started"))


def lost(name: str, when: float = 100.0, drained: bool = False) -> BadNode:
    return BadNode(name, when, "lost connection", "12", drained)


class TestANodesRecord:
    def test_has_the_reason_and_whose_it_is(self) -> None:
        records = parse_node_records((FIXTURES / "slurm-24.11.5" / "show_node.txt").read_text())
        assert (records["n3"].reason, records["n3"].by) == ("test", "unicron-admin")
        assert records["n3"].state.draining
        assert (records["n1"].reason, records["n1"].by) == ("", "")
        started, booted = records["n1"].started, records["n1"].booted
        assert started is not None
        assert booted is not None
        assert started - booted == 47 * 60 + 38

    def test_is_not_mistaken_for_the_words_of_its_reason(self) -> None:
        told = (
            "NodeName=n1 State=IDLE+DRAIN BootTime=None Reason=was State=DOWN [by a@b] BootTime=x [root@now]"
        )
        record = parse_node_records(told)["n1"]
        assert str(record.state) == "IDLE+DRAIN"
        assert (record.reason, record.by) == ("was State=DOWN [by a@b] BootTime=x", "root")
        assert record.booted is None

    @pytest.mark.parametrize("stamp", [" [slurm@2026-11-30T10:00:00]", ""])
    @pytest.mark.parametrize(
        "behind",
        [
            "ReservationName=llm",
            "Comment=rack 7, row 2 Extra=x ReservationName=llm",
            "Topology=default:s1,s2 ",
        ],
    )
    def test_ends_with_fields_that_a_site_may_have(self, behind: str, stamp: str) -> None:
        told = f"NodeName=n1 State=DOWN*+RESERVED  CurrentWatts=n/a Reason=Not responding{stamp} {behind}"
        record = parse_node_records(told)["n1"]
        assert (record.reason, record.somebodys_reason) == ("Not responding", "")
        assert record.by == ("slurm" if stamp else "")

    @given(st.text(st.characters(codec="ascii", exclude_categories=["C"])))
    def test_has_its_state_whatever_words_its_reason_has(self, words: str) -> None:
        record = parse_node_records(f"NodeName=n1 State=IDLE Reason={words} State=DOWN NodeName=n2")["n1"]
        assert str(record.state) == "IDLE"
        assert record.reason.endswith("State=DOWN NodeName=n2")


class TestTheList:
    def test_is_empty_before_the_first_and_private(self, tmp_path: Path) -> None:
        assert bad_nodes.read(tmp_path) == ()
        bad_nodes.add(tmp_path, lost("n3"))
        path = tmp_path / bad_nodes.FILE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text())[0] == {
            "node": "n3", "time": 100.0, "kind": "lost connection", "job_id": "12", "drained": False,
        }  # fmt: skip

    def test_has_the_last_word_on_each_node(self, tmp_path: Path) -> None:
        for entry in (lost("n3"), lost("n4"), lost("n3", 200.0, drained=True)):
            bad_nodes.add(tmp_path, entry)
        assert set(bad_nodes.read(tmp_path)) == {lost("n4"), lost("n3", 200.0, drained=True)}

    def test_that_is_damaged_stops_nobody(self, tmp_path: Path) -> None:
        (tmp_path / bad_nodes.FILE).write_text('[{"node": 3}]')
        assert bad_nodes.read(tmp_path) == ()
        bad_nodes.add(tmp_path, lost("n3"))
        assert bad_nodes.read(tmp_path) == (lost("n3"),)

    def test_is_written_though_another_job_that_writes_it_has_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bad_nodes.add(tmp_path, lost("n3"))
        monkeypatch.setattr(bad_nodes, "PATIENCE", 0.0)
        with (tmp_path / f".{bad_nodes.FILE}.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            bad_nodes.add(tmp_path, lost("n4"))
        assert set(bad_nodes.read(tmp_path)) == {lost("n3"), lost("n4")}

    def test_is_not_written_while_another_job_writes_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bad_nodes.add(tmp_path, lost("n3"))
        held = (tmp_path / f".{bad_nodes.FILE}.lock").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)

        def other_job_goes_on(seconds: float) -> None:
            assert bad_nodes.read(tmp_path) == (lost("n3"),)
            held.close()

        monkeypatch.setattr("time.sleep", other_job_goes_on)
        bad_nodes.add(tmp_path, lost("n4"))
        assert held.closed
        assert set(bad_nodes.read(tmp_path)) == {lost("n3"), lost("n4")}


class TestStillBad:
    def bad(self, entry: BadNode, record: NodeRecord | None, now: float = 200.0) -> bool:
        nodes = {} if record is None else {record.name: record}
        return bad_nodes.still_bad([entry], nodes, now, DAY) == [entry]

    def test_is_a_node_of_which_nothing_new_is_known(self) -> None:
        assert self.bad(lost("n3"), node("n3", booted=50.0, started=60.0))
        assert bad_nodes.still_bad([lost("n3")], None, 200.0, DAY) == [lost("n3")]

    def test_is_forgotten_after_a_time(self) -> None:
        assert not self.bad(lost("n3"), node("n3"), now=101.0 + DAY)

    def test_is_not_what_was_booted_since(self) -> None:
        assert not self.bad(lost("n3"), node("n3", booted=150.0))

    def test_is_not_what_was_resumed_after_its_drain(self) -> None:
        assert self.bad(lost("n3", drained=True), node("n3", "IDLE+DRAIN"))
        assert not self.bad(lost("n3", drained=True), node("n3", "IDLE"))

    def test_is_not_a_lost_node_whose_slurmd_was_started_since(self) -> None:
        assert not self.bad(lost("n3"), node("n3", started=150.0))
        assert self.bad(lost("n3"), node("n3", "DOWN*", started=150.0))
        ecc = BadNode("n3", 100.0, "ECC error", "12")
        assert self.bad(ecc, node("n3", started=150.0))

    def test_is_not_a_node_that_slurm_does_not_have(self) -> None:
        assert not self.bad(lost("n3"), None)


class TestASubmission:
    def exclusion(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *overrides: str,
        bad: Sequence[BadNode] = (lost("n3", 4e9), lost("n4", 4e9 - 1)),
        room: int = 20,
        answers: bool = True,
    ) -> tuple[tuple[str, ...], str]:
        for entry in bad:
            bad_nodes.add(folder, entry)

        def records(names: Sequence[str], **_: object) -> dict[str, NodeRecord]:
            if not answers:
                raise SlurmError("no answer")
            return {name: node(name) for name in names}

        monkeypatch.setattr(queries, "node_records", records)
        monkeypatch.setattr("time.time", lambda: 4e9 + 10)
        option, notes = avoiding.exclusion(settings(*overrides, run_dir=folder), {"main": room}, "main", {})
        return option, "\n".join(notes)

    def test_leaves_bad_nodes_out_and_says_why(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        option, said = self.exclusion(tmp_path, monkeypatch)
        assert option == ("--exclude=n[3-4]",)
        assert "n3 (lost connection, job 12)" in said
        assert str(tmp_path / "bad-nodes.json") in said

    def test_does_so_too_when_slurm_does_not_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.exclusion(tmp_path, monkeypatch, answers=False)[0] == ("--exclude=n[3-4]",)

    def test_keeps_what_the_user_excludes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.exclusion(tmp_path, monkeypatch, "slurm.exclude=n9")[0] == ("--exclude=n[3-4,9]",)

    def test_counts_a_bad_node_that_the_user_excludes_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room = settings().slurm.total_nodes + 2
        option, said = self.exclusion(tmp_path, monkeypatch, "slurm.exclude=n3", room=room)
        assert option == ("--exclude=n[3-4]",)
        assert "may be used" not in said

    def test_never_leaves_too_few_nodes_for_the_job(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needed = settings().slurm.total_nodes
        option, said = self.exclusion(tmp_path, monkeypatch, room=needed + 1)
        assert option == ("--exclude=n3",)  # the latest
        assert "may be used" in said
        assert "n4" in said
        assert self.exclusion(tmp_path, monkeypatch, room=needed)[0] == ()

    def test_uses_a_node_that_the_user_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        option, said = self.exclusion(tmp_path, monkeypatch, "slurm.nodelist=n3")
        assert option == ("--exclude=n4",)
        assert "may be used" in said

    def test_can_be_told_not_to(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.exclusion(tmp_path, monkeypatch, "recovery.exclude_for=0") == ((), "")

    def test_is_as_ever_where_no_node_is_bad(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.exclusion(tmp_path, monkeypatch, bad=()) == ((), "")


class TestARequeue:
    def command(self, answer: Completed, asked: list[Sequence[str]], record: str) -> Callable[..., Completed]:
        def command(argv: Sequence[str], **_: object) -> Completed:
            asked.append(argv)
            if argv[:2] == ["scontrol", "update"]:
                return answer
            told = {"job": record, "node": "NodeName=n3 State=IDLE\nNodeName=n4 State=IDLE\n"}
            words = told[argv[2]] if argv[0] == "scontrol" else "main|20\n"
            return Completed(tuple(argv), words, "", 0)

        return command

    def run(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        state: str = "COMPLETING",
        excluded: str = "(null)",
        bad: Sequence[BadNode] = (lost("n3", 4e9),),
        answer: Completed = TAKEN,
        overrides: Sequence[str] = (),
        others: str = "",
    ) -> tuple[str, list[str]]:
        for entry in bad:
            bad_nodes.add(folder, entry)
        asked: list[Sequence[str]] = []
        record = f"JobId=12 JobState={state} Restarts=1 ExcNodeList={excluded} NumNodes=3\n"
        record = others + record
        monkeypatch.setattr(commands, "run", self.command(answer, asked, record))
        monkeypatch.setattr("time.time", lambda: 4e9 + 10)
        said = "\n".join(avoiding.after_requeue(settings(*overrides, run_dir=folder), "12"))
        return said, [argv[-1] for argv in asked if argv[:2] == ["scontrol", "update"]]

    def test_leaves_bad_nodes_out_of_the_next_attempt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said, updates = self.run(tmp_path, monkeypatch)
        assert updates == ["ExcNodeList=n3"]
        assert "n3 (lost connection, job 12)" in said

    def test_keeps_what_others_exclude_and_judges_anew_what_was_bad_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repaired = lost("n4", 4e9, drained=True)
        _, updates = self.run(tmp_path, monkeypatch, excluded="n[4,9]", bad=[lost("n3", 4e9), repaired])
        assert updates == ["ExcNodeList=n[3,9]"]

    def test_keeps_what_the_user_excludes_though_it_was_bad_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repaired = lost("n4", 4e9, drained=True)
        _, updates = self.run(
            tmp_path,
            monkeypatch,
            excluded="n4",
            bad=[lost("n3", 4e9), repaired],
            overrides=["slurm.exclude=n4"],
        )
        assert updates == ["ExcNodeList=n[3-4]"]

    def test_is_about_this_task_of_an_array_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = "JobId=13 ArrayJobId=12 ArrayTaskId=0 JobState=RUNNING ExcNodeList=n8 NumNodes=3\n"
        assert self.run(tmp_path, monkeypatch, others=other)[1] == ["ExcNodeList=n3"]

    def test_is_not_expected_of_a_job_that_ends_by_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.run(tmp_path, monkeypatch, state="RUNNING") == ("", [])

    def test_is_no_requeue_where_slurm_refuses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        refusal = Completed((), "", "Job has already finished for job 12", 1)
        assert self.run(tmp_path, monkeypatch, answer=refusal)[0] == ""

    def test_asks_nothing_where_no_node_is_bad(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def never(argv: Sequence[str], **_: object) -> Completed:
            raise AssertionError(argv)

        monkeypatch.setattr(commands, "run", never)
        assert avoiding.after_requeue(settings(run_dir=tmp_path), "12") == ()

    def test_is_given_up_when_slurm_does_not_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def silent(argv: Sequence[str], **_: object) -> Completed:
            raise SlurmError("no answer")

        bad_nodes.add(tmp_path, lost("n3", 4e9))
        monkeypatch.setattr(commands, "run", silent)
        assert avoiding.after_requeue(settings(run_dir=tmp_path), "12") == ()


class TestARequest:
    def test_goes_into_the_run_folder_where_only_its_owner_looks(self, tmp_path: Path) -> None:
        path = drain_request.leave(tmp_path, "n3", "12", "ECC error", {})
        assert path == tmp_path / "drain-requests" / "12-n3.json"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        told = json.loads(path.read_text())
        assert (told["node"], told["job_id"], told["kind"]) == ("n3", "12", "ECC error")

    def test_goes_into_the_sites_folder_where_there_is_one(self, tmp_path: Path) -> None:
        spool = tmp_path / "spool"
        spool.mkdir()
        path = drain_request.leave(tmp_path, "n3", "12", "x", {"UNICRON_DRAIN_REQUESTS": str(spool)})
        assert path == spool / "12-n3.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def test_falls_back_to_the_run_folder(self, tmp_path: Path) -> None:
        gone = str(tmp_path / "gone")
        path = drain_request.leave(tmp_path, "n3", "12", "x", {"UNICRON_DRAIN_REQUESTS": gone})
        assert path.parent == tmp_path / "drain-requests"

    def test_never_writes_through_what_others_put_there(self, tmp_path: Path) -> None:
        spool, target = tmp_path / "spool", tmp_path / "target"
        spool.mkdir()
        target.write_text("precious")
        (spool / "12-n3.json").symlink_to(target)
        path = drain_request.leave(tmp_path, "n3", "12", "x", {"UNICRON_DRAIN_REQUESTS": str(spool)})
        assert target.read_text() == "precious"
        assert path.parent == spool
        assert json.loads(path.read_text())["node"] == "n3"  # it is left all the same

    def test_is_left_though_another_user_has_taken_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spool = {"UNICRON_DRAIN_REQUESTS": str(tmp_path)}
        (tmp_path / "12-n3.json").write_text("{}")
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        path = drain_request.leave(tmp_path, "n3", "12", "x", spool)
        assert path.name != "12-n3.json"
        assert json.loads(path.read_text())["job_id"] == "12"

    def test_is_left_once(self, tmp_path: Path) -> None:
        first = drain_request.leave(tmp_path, "n3", "12", "x", {})
        assert drain_request.leave(tmp_path, "n3", "12", "y", {}) == first
        assert list(first.parent.iterdir()) == [first]


class TestSilenceIsWanted:
    @pytest.mark.parametrize(
        "state", ["CANCELLED by 1000", "COMPLETING", "PREEMPTED", "TIMEOUT", "SUSPENDED", "PENDING"]
    )
    def test_when_the_job_is_ended(self, state: str) -> None:
        assert "on purpose" in job_end.why(parse_job_state(state), "n3", parse_node_state("IDLE"))

    @pytest.mark.parametrize("state", ["MIXED+REBOOT_ISSUED", "IDLE+POWERING_DOWN", "ALLOCATED+MAINTENANCE"])
    def test_when_somebody_has_the_node_switched_off(self, state: str) -> None:
        assert "n3" in job_end.why(parse_job_state("RUNNING"), "n3", parse_node_state(state))

    @pytest.mark.parametrize("job", ["RUNNING", "NODE_FAIL", "whatever comes"])
    @pytest.mark.parametrize("state", ["DOWN*", "ALLOCATED*", "MIXED+DRAIN"])
    def test_otherwise_it_is_not(self, job: str, state: str) -> None:
        assert job_end.why(parse_job_state(job), "n3", parse_node_state(state)) == ""
        assert job_end.why(parse_job_state(job), "n3", None) == ""

    def test_is_not_known_when_slurm_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def silent(job_id: str) -> None:
            raise SlurmError("no answer")

        monkeypatch.setattr(queries, "job", silent)
        assert job_end.wanted("12", "n3") == ""


class TestGivingBack:
    def run(self, nodes: str, answer: Completed, asked: list[Sequence[str]], batch: str = "n1") -> object:
        def command(argv: Sequence[str]) -> Completed:
            asked.append(argv)
            if argv[1] == "update":
                return answer
            line = f"JobId=12 JobState=RUNNING BatchHost={batch} NodeList={nodes}\n"
            return Completed(tuple(argv), line, "", 0)

        return giving_back.give_back("12", "n3", run=command)

    def test_shrinks_the_job_to_the_others(self) -> None:
        asked: list[Sequence[str]] = []
        assert self.run("n[1-4]", Completed((), "", "", 0), asked) == (True, "")
        assert asked[-1] == ["scontrol", "update", "JobId=12", "NodeList=n[1-2,4]"]

    def test_tells_slurms_refusal(self) -> None:
        refusal = Completed((), "", "Invalid node name specified\n", 1)
        assert self.run("n[1-4]", refusal, []) == (False, "Invalid node name specified")

    @pytest.mark.parametrize(("nodes", "batch"), [("n[1-4]", "n3"), ("n3", "n1")])
    def test_never_takes_the_batch_node_or_the_last_one(self, nodes: str, batch: str) -> None:
        asked: list[Sequence[str]] = []
        given_back, why = self.run(nodes, Completed((), "", "", 0), asked, batch)  # type: ignore[misc]
        assert not given_back
        assert "batch script" in why
        assert len(asked) == 1

    def test_has_nothing_to_do_where_slurm_took_it(self) -> None:
        asked: list[Sequence[str]] = []
        assert self.run("n[1-2]", Completed((), "", "", 0), asked)[0] is True  # type: ignore[index]
        assert len(asked) == 1

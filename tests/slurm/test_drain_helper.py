"""The root-side helper: whom it believes, what it drains, and what it leaves alone."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

HELPER = Path(__file__).parents[2] / "slurm" / "drain_helper"
ME = os.geteuid()


def load() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("drain_helper", str(HELPER))
    spec = importlib.util.spec_from_loader("drain_helper", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["drain_helper"] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def helper() -> Iterator[ModuleType]:
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    yield load()
    sys.dont_write_bytecode = before


class Slurm:
    """A cluster with one job of ours and some nodes, as its commands show it."""

    def __init__(self) -> None:
        self.jobs = {"12": f"{ME}|RUNNING|2026-11-30T12:00:00|n[1-4]"}
        self.nodes = {f"n{i}": ("ALLOCATED", "") for i in range(1, 10)}
        self.other_tasks: list[dict[str, str]] = []  # of the array whose number the job has, too
        self.behind = ""  # fields that a site may have behind the reason
        self.silent = False
        self.updates: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        code, out, err = self.answer(list(argv))
        return subprocess.CompletedProcess(argv, code, out, err)

    def answer(self, argv: list[str]) -> tuple[int, str, str]:
        if self.silent:
            return 1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
        if argv[0] == "squeue":
            job = next(word for word in argv if word.startswith("--jobs=")).removeprefix("--jobs=")
            if job not in self.jobs:
                return 1, "", "slurm_load_jobs error: Invalid job id specified"
            fields = next(word for word in argv if word.startswith("--format=")).removeprefix("--format=")
            uid, state, end, nodes = self.jobs[job].split("|")
            of_task = {"%A": job, "%U": uid, "%T": state, "%e": end, "%N": nodes}
            tasks = [{**of_task, **other} for other in (*self.other_tasks, {})]
            return 0, "".join("|".join(task[f] for f in fields.split("|")) + "\n" for task in tasks), ""
        if argv[1:3] == ["show", "hostnames"]:
            first, last = argv[3].removeprefix("n[").removesuffix("]").split("-")
            return 0, "".join(f"n{i}\n" for i in range(int(first), int(last) + 1)), ""
        if argv[1:3] == ["show", "node"]:
            state, reason = self.nodes[argv[-1]]
            told = f" Reason={reason} [root@2026-11-30T10:00:00]" if reason else ""
            return 0, f"NodeName={argv[-1]} Arch=x86_64 State={state} X=1 {told}{self.behind}\n", ""
        self.updates.append(argv)
        self.nodes[argv[2].removeprefix("NodeName=")] = ("ALLOCATED+DRAIN", argv[4].removeprefix("Reason="))
        return 0, "", ""

    @property
    def drained(self) -> list[str]:
        return [argv[2].removeprefix("NodeName=") for argv in self.updates]


class Site:
    """A folder for requests, a cluster, and runs of the helper."""

    def __init__(self, helper: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.helper = helper
        self.slurm = Slurm()
        self.spool = folder / "spool"
        self.spool.mkdir()
        self.spool.chmod(0o1777)
        self.state = folder / "state" / "drains.json"
        self.capsys = capsys

    def request(self, text: object, name: str = "12-n2.json") -> Path:
        path = self.spool / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    def ask(self, node: str = "n2", job: str = "12", **more: object) -> Path:
        content = {"node": node, "job_id": job, "kind": "lost connection", **more}
        return self.request(content, f"{job}-{node}.json")

    def run(self, *options: str, code: int = 0) -> str:
        words = [str(self.spool), f"--state={self.state}", *options]
        assert self.helper.main(words, self.slurm) == code
        out = self.capsys.readouterr()
        return str(out.out + out.err)


@pytest.fixture
def site(helper: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(helper, tmp_path, capsys)


def test_the_owner_of_a_job_has_its_node_drained_and_the_request_is_done_with(site: Site) -> None:
    request = site.ask()
    said = site.run()
    assert site.slurm.drained == ["n2"]
    reason = site.slurm.updates[0][-1]
    assert reason.startswith(f"Reason=unicron: lost connection job 12 uid {ME} ")
    assert "n2 is drained" in said
    assert not request.exists()


def test_a_task_of_an_array_that_has_the_arrays_own_number_is_told_from_the_others(site: Site) -> None:
    site.slurm.other_tasks = [{"%A": "13", "%T": "COMPLETED"}, {"%A": "14", "%U": "0", "%N": "n[5-6]"}]
    site.ask("n2")
    assert "n2 is drained" in site.run()
    site.ask("n5")
    assert "does not have n5" in site.run()


@pytest.mark.parametrize("text", ["", "[[1", "{}", '["x"]', "\x00"])
def test_a_memory_that_is_damaged_is_said_to_be_and_nothing_is_drained(text: str, site: Site) -> None:
    request = site.ask()
    site.state.parent.mkdir()
    site.state.write_text(text)
    said = site.run(code=2)
    assert str(site.state) in said
    assert (site.slurm.drained, request.exists(), site.state.read_text()) == ([], True, text)


def test_a_memory_that_cannot_be_kept_is_said_not_to_be(site: Site) -> None:
    site.state.parent.touch()  # where a folder should be
    site.ask()
    assert "drain_helper: " in site.run(code=2)
    assert site.slurm.drained == []


def test_a_node_that_slurm_lost_in_a_reservation_is_nobodys_work_yet(site: Site) -> None:
    site.slurm.nodes["n2"] = ("DOWN*+RESERVED", "Not responding")
    site.slurm.behind = " Comment=rack 7 ReservationName=llm"
    site.ask()
    assert "n2 is drained: unicron: lost connection job 12" in site.run()


def test_a_dry_run_says_so_and_changes_nothing(site: Site) -> None:
    request = site.ask()
    assert "would be drained" in site.run("--dry-run")
    assert site.slurm.updates == []
    assert request.exists()
    assert not site.state.parent.exists()


class TestIsRefused:
    def refused(self, site: Site, why: str) -> None:
        said = site.run()
        assert "refused" in said
        assert why in said
        assert site.slurm.updates == []

    def test_who_does_not_own_the_job(self, site: Site) -> None:
        site.slurm.jobs["13"] = f"{ME + 1}|RUNNING|2026-11-30T12:00:00|n[1-4]"
        request = site.ask(job="13")
        self.refused(site, f"job 13 is not uid {ME}'s")
        assert not request.exists()

    def test_a_node_that_the_job_does_not_have(self, site: Site) -> None:
        site.ask(node="n7")
        self.refused(site, "does not have n7")

    def test_a_job_that_nobody_knows(self, site: Site) -> None:
        site.ask(job="99")
        self.refused(site, "no job 99")

    def test_a_job_that_ended_long_ago(self, site: Site) -> None:
        site.slurm.jobs["12"] = f"{ME}|COMPLETED|2020-01-01T12:00:00|n[1-4]"
        site.ask()
        self.refused(site, "COMPLETED")

    def test_a_symbolic_link(self, site: Site, tmp_path: Path) -> None:
        target = tmp_path / "target.json"
        target.write_text(json.dumps({"node": "n2", "job_id": "12"}))
        (site.spool / "12-n2.json").symlink_to(target)
        self.refused(site, "symbolic link")
        assert target.exists()

    def test_a_second_name_of_somebody_elses_file(self, site: Site, tmp_path: Path) -> None:
        target = tmp_path / "target.json"
        target.write_text(json.dumps({"node": "n2", "job_id": "12"}))
        (site.spool / "12-n2.json").hardlink_to(target)
        self.refused(site, "another name")

    def test_a_pipe_without_waiting_for_its_writer(self, site: Site) -> None:
        os.mkfifo(site.spool / "12-n2.json")
        self.refused(site, "no plain file")

    def test_a_folder(self, site: Site) -> None:
        (site.spool / "12-n2.json").mkdir()
        self.refused(site, "no plain file")

    @pytest.mark.parametrize(
        "text",
        [
            "", "{", "[]", "null", "{}", "[" * 4000, "\udcff".encode(errors="replace").decode(), "x" * 5000,
            {"node": "n2"}, {"job_id": "12"}, {"node": "n[1-4]", "job_id": "12"},
            {"node": "n2,n3", "job_id": "12"}, {"node": "n2 State=RESUME", "job_id": "12"},
            {"node": "n2\nn3", "job_id": "12"}, {"node": "n2", "job_id": "12;reboot"},
            {"node": "n2", "job_id": 12}, {"node": ["n2"], "job_id": "12"}, {"node": "-all", "job_id": "12"},
            {"node": "ALL\n", "job_id": "12"},
        ],
    )  # fmt: skip
    def test_garbage(self, site: Site, text: object) -> None:
        request = site.request(text)
        self.refused(site, "it ")
        assert not request.exists()

    def test_a_request_of_the_day_before_yesterday(self, site: Site) -> None:
        request = site.ask()
        os.utime(request, (time.time() - 2 * 86400,) * 2)
        self.refused(site, "too old")

    def test_a_foreign_file_in_a_folder_of_one_user(self, site: Site) -> None:
        site.ask()
        spool = os.open(site.spool, os.O_RDONLY)
        try:
            with pytest.raises(site.helper.Refused, match="in a folder of uid"):
                site.helper.read_request(spool, "12-n2.json", ME + 1)
        finally:
            os.close(spool)

    def test_the_same_again_after_the_node_was_resumed(self, site: Site) -> None:
        site.ask()
        site.run()
        site.slurm.nodes["n2"] = ("ALLOCATED", "")
        site.slurm.updates.clear()
        site.ask()
        self.refused(site, "was drained for job 12 before")

    def test_more_than_a_job_may(self, site: Site) -> None:
        for node in ("n1", "n2", "n3"):
            site.ask(node=node)
        said = site.run("--per-job=2")
        assert site.slurm.drained == ["n1", "n2"]
        assert "2 nodes were drained for job 12 already" in said

    def test_more_than_a_user_may_in_a_day(self, site: Site) -> None:
        site.slurm.jobs["13"] = f"{ME}|RUNNING|2026-11-30T12:00:00|n[5-8]"
        site.ask(node="n1")
        site.ask(node="n5", job="13")
        said = site.run("--per-user=1")
        assert site.slurm.drained == ["n1"]
        assert "within a day" in said


class TestAnEarlierReason:
    def test_stays_on_a_node_that_drains_already(self, site: Site) -> None:
        site.slurm.nodes["n2"] = ("ALLOCATED+DRAIN", "bad fan")
        request = site.ask()
        assert "its reason stays: bad fan" in site.run()
        assert site.slurm.updates == []
        assert not request.exists()

    def test_stays_on_a_node_that_somebody_set_down(self, site: Site) -> None:
        site.slurm.nodes["n2"] = ("DOWN", "power supply")
        site.ask()
        site.run()
        assert site.slurm.updates == []

    def test_comes_first_on_a_node_in_service(self, site: Site) -> None:
        site.slurm.nodes["n2"] = ("ALLOCATED", "watch this one")
        site.ask()
        site.run()
        assert site.slurm.updates[0][-1].startswith("Reason=watch this one; unicron: ")

    def test_of_slurmctld_itself_is_replaced(self, site: Site) -> None:
        site.slurm.nodes["n2"] = ("DOWN*", "Not responding")
        site.ask()
        site.run()
        assert site.slurm.updates[0][-1].startswith("Reason=unicron: ")


def test_the_askers_words_are_plain_text_of_one_line_in_the_reason(site: Site) -> None:
    site.ask(kind='a"b\n$(reboot) State=RESUME ' + "x" * 200)
    site.run()
    (update,) = site.slurm.updates
    assert len(update) == 5
    assert update[-1].isprintable()
    assert not set(update[-1].removeprefix("Reason=")) & set("\"$'`\\=\n")


def test_while_slurm_does_not_answer_a_request_stays(site: Site) -> None:
    request = site.ask()
    site.slurm.silent = True
    assert "not now" in site.run(code=1)
    assert request.exists()
    site.slurm.silent = False
    site.run()
    assert site.slurm.drained == ["n2"]


def test_a_folder_that_others_can_write_to_must_be_sticky(site: Site) -> None:
    site.ask()
    site.spool.chmod(0o777)
    assert "sticky" in site.run(code=2)
    assert site.slurm.updates == []


def test_no_folder_is_no_request(site: Site) -> None:
    site.spool.rmdir()
    assert site.run() == ""


def test_other_files_are_left_alone(site: Site) -> None:
    other = site.request("{}", "README")
    hidden = site.request("{}", ".12-n2.json")
    assert site.run() == ""
    assert other.exists()
    assert hidden.exists()


def test_folders_do_not_take_the_place_of_requests(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.helper, "MOST", 3)
    for k in range(3):
        (site.spool / f"0-{k}.json").mkdir()
    site.ask()
    assert "n2 is drained" in site.run()


def test_its_help_says_what_it_believes() -> None:
    done = subprocess.run([HELPER, "--help"], capture_output=True, text=True, check=True, timeout=30)
    assert "--dry-run" in done.stdout
    assert "it believes nothing but" in done.stdout

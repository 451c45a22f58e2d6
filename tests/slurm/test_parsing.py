"""What Slurm's commands print, from recorded outputs and from the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.field_cases import case, cases
from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import parsing
from unicron_hpc.slurm.parsing import ExitCode
from unicron_hpc.slurm.states import parse_job_state

_RECORDED = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize(("text", "expected"), cases("sbatch_output"))
def test_the_job_number_is_found_in_any_answer_of_sbatch(text: str, expected: dict[str, str]) -> None:
    if "job_id" in expected:
        assert parsing.parse_submission(text) == expected["job_id"]
    else:
        with pytest.raises(SlurmError):
            parsing.parse_submission(text)


def test_the_cluster_name_is_no_part_of_the_job_number() -> None:
    assert parsing.parse_submission("123;mycluster\n") == "123"


@pytest.mark.parametrize(
    ("text", "expected"), [c for c in cases("sacct") if c.id not in {"sacct-11", "sacct-13"}]
)
def test_sacct_gives_the_job_and_not_its_steps(text: str, expected: dict[str, Any]) -> None:
    records = parsing.parse_sacct(text)
    states = {job_id: record.state for job_id, record in records.items()}
    assert {job_id: state.name for job_id, state in states.items()} == {
        job_id: name for job_id, name in expected.items() if job_id.isdecimal()
    }
    if "terminal" in expected:
        assert all(state.terminal == expected["terminal"] for state in states.values())


def test_of_two_jobs_with_one_number_the_later_counts() -> None:
    text, expected = case("sacct-11")
    records = parsing.parse_sacct(text, ("JobID", "State", "Submit"))
    assert records["1200"].state.name == expected["1200"]
    backwards = "\n".join(reversed(text.splitlines()))
    assert parsing.parse_sacct(backwards, ("JobID", "State", "Submit")) == records


def test_the_ranks_exit_code_is_the_derived_one() -> None:
    text, _ = case("sacct-13")
    record = parsing.parse_sacct(text, ("JobID", "State", "ExitCode", "DerivedExitCode"))["70"]
    assert record.exit_code == ExitCode(0, 9)
    assert record.derived_exit_code == ExitCode(137, 0)


def test_squeue_json_has_states_as_a_list_with_flags() -> None:
    document, expected = case("squeue-03")
    state = parsing.parse_squeue_json(document)["2"].state
    assert state.name == expected["state"]
    assert list(state.flags) == expected["flags"]


def test_squeue_json_nodes_come_from_the_hostlist_in_every_version() -> None:
    document, expected = case("squeue-05")
    assert list(parsing.parse_squeue_json(document)["6"].nodes) == expected["nodes"]


def test_squeue_shows_why_a_job_waits() -> None:
    text, expected = case("squeue-09")
    record = parsing.parse_squeue(text)["4"]
    assert record.state.name == expected["state"]
    assert record.reason == expected["reason"]


@pytest.mark.parametrize("case_id", ["squeue-01", "squeue-07"])
def test_an_error_of_squeues_is_no_job(case_id: str) -> None:
    assert parsing.parse_squeue(case(case_id)[0]) == {}


@pytest.mark.parametrize("document", [None, [], {}, {"jobs": None}])
def test_squeue_json_without_jobs_is_empty(document: object) -> None:
    assert parsing.parse_squeue_json(document) == {}


@pytest.mark.parametrize(("text", "expected"), [c for c in cases("version") if isinstance(c.values[0], str)])
def test_versions(text: str, expected: dict[str, Any]) -> None:
    assert list(parsing.parse_version(text)) == expected["version"]


def test_debian_calls_its_slurm_otherwise() -> None:
    assert parsing.parse_version("slurm-wlm 22.05.8\n") == (22, 5, 8)
    with pytest.raises(SlurmError, match="no Slurm version"):
        parsing.parse_version("command not found")


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5"])
def test_recorded_scontrol_output(version: str) -> None:
    folder = _RECORDED / f"slurm-{version}"
    expected = json.loads((folder / "expected.json").read_text())
    jobs = parsing.parse_show_job((folder / "show_job.txt").read_text())
    nodes = parsing.parse_show_node((folder / "show_node.txt").read_text())
    assert {
        job_id: [job.state.name, list(job.nodes), job.batch_host, job.exit_code and job.exit_code.code]
        for job_id, job in jobs.items()
    } == expected["jobs"]
    assert {name: [str(state), state.usable, state.responding] for name, state in nodes.items()} == expected[
        "nodes"
    ]


def test_a_job_cannot_pass_for_another_through_its_comment() -> None:
    line = (
        "JobId=1 JobName=x JobState=FAILED NodeList=n1 ExitCode=1:0 Comment=x JobState=COMPLETED NodeList=n9"
    )
    job = parsing.parse_show_job(line)["1"]
    assert (job.state.name, job.nodes) == ("FAILED", ("n1",))


@pytest.mark.parametrize(
    ("text", "name", "terminal"),
    [
        ("CANCELLED by 1000", "CANCELLED", True),
        ("CANCELLED+", "CANCELLED", True),
        ("CG", "COMPLETING", False),
        ("COMPLETED+COMPLETING", "COMPLETED", False),
        ("NODE_FAIL", "NODE_FAIL", True),
        ("", "UNKNOWN", False),
        ("NEVER_SEEN", "UNKNOWN", False),
    ],
)
def test_job_states(text: str, name: str, terminal: bool) -> None:
    state = parse_job_state(text)
    assert (state.name, state.terminal) == (name, terminal)
    assert state.sentence


def test_partition_sizes_add_up_over_lines() -> None:
    assert parsing.parse_partition_sizes("main|3\nmain|2\ngpu|8\n\nx|?\n") == {"main": 5, "gpu": 8}

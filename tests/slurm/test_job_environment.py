"""What Slurm's variables say about a job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.slurm.field_cases import case
from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm.job_environment import JobEnvironment, expand_counts, read_job_environment


def read(variables: dict[str, Any]) -> JobEnvironment:
    """Read `variables`; an absent one is None, and number and nodes are there in any case."""
    given = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n1", **variables}
    return read_job_environment({name: text for name, text in given.items() if text is not None})


def test_counts_per_node_are_written_out() -> None:
    given, expected = case("env-01")
    job = read(given)
    assert list(job.tasks) == expected["tasks"]
    assert job.nodes == ("n1", "n2", "n3", "n4")


def test_nodes_may_hold_different_numbers_of_tasks() -> None:
    given, expected = case("env-05")
    job = read(given)
    first, ranks = 0, {}
    for node, count in zip(job.nodes, job.tasks, strict=True):
        ranks[node] = list(range(first, first + count))
        first += count
    assert ranks == expected["ranks"]


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        (case("env-03")[0], case("env-03")[1]["gpus_on_node"]),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "tesla:2,volta:1"}, 3),
        ({"SLURM_GPUS_ON_NODE": "3", "SLURM_GPUS_PER_NODE": "8"}, 3),
        ({"SLURM_GPUS_ON_NODE": "0"}, 0),
        ({"SLURM_GPUS_ON_NODE": "many"}, None),
        ({}, None),
    ],
)
def test_gpus_are_slurms_own_count_or_what_was_asked_for(
    variables: dict[str, str], count: int | None
) -> None:
    assert read(variables).gpus_on_node == count


def test_the_number_of_tasks_may_be_absent() -> None:
    assert read(case("env-07")[0]).tasks == ()


def test_nodes_are_expanded_without_any_command_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    given = case("env-09")[0]
    assert read({"SLURM_JOB_NODELIST": given["SLURM_JOB_NODELIST"]}).nodes == (
        "node1",
        "node2",
        "node3",
        "node4",
    )


def test_the_time_that_is_left_comes_from_the_end_that_slurm_names() -> None:
    given, expected = case("env-19")
    assert (
        read({"SLURM_JOB_END_TIME": given["SLURM_JOB_END_TIME"]}).seconds_left(given["now"])
        == expected["seconds_left"]
    )
    assert read({}).seconds_left(0.0) is None
    assert read({"SLURM_JOB_END_TIME": "INVALID"}).ends is None


def test_a_task_of_an_array_is_shown_as_slurm_does_and_keeps_a_number_of_its_own() -> None:
    given, expected = case("env-21")
    job = read(given)
    assert job.shown_id == expected["display"]
    assert job.job_id == given["SLURM_JOB_ID"]
    assert read({}).shown_id == "12"


def test_variables_of_two_jobs_are_refused() -> None:
    with pytest.raises(SlurmError, match="is of 2 nodes"):
        read({"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_NODELIST": "n[1-3]"})


@pytest.mark.parametrize("text", ["x", "1(x2", "1(2)", "-1", "1(x)", "1(x999999),1(x999999)"])
def test_what_are_no_counts_is_refused_with_the_variables_name(text: str) -> None:
    with pytest.raises(SlurmError, match="SLURM_TASKS_PER_NODE"):
        expand_counts(text)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 20)), max_size=8))
def test_counts_are_what_they_were_before_slurm_wrote_them_short(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert expand_counts(text) == [count for count, times in runs for _ in range(times)]

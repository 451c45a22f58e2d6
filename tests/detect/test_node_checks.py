"""What the checks of a node say."""

from __future__ import annotations

import errno

import pytest

from unicron_hpc.detect.node_checks import GIB, NodeReport, judge
from unicron_hpc.detect.severity import Blame, Severity

WELL = NodeReport(gpus=8, memory=64 * GIB, shared_memory=8 * GIB, disk=500 * GIB, write_seconds=0.01)


def errors(report: NodeReport, gpus: int = 0) -> list[tuple[str, Severity]]:
    return [(finding.error, finding.severity) for finding, _ in judge(report, gpus)]


def test_a_well_node_is_worth_no_word() -> None:
    assert errors(WELL, 8) == []
    assert errors(WELL, 4) == []
    assert errors(NodeReport()) == []


def test_a_missing_gpu_takes_the_node_out_and_the_evidence_has_both_numbers() -> None:
    ((finding, detail),) = judge(NodeReport(gpus=7, gpu_problem="GPU 3: Unknown Error"), 8)
    assert (finding.error, finding.severity, finding.blame) == ("GPU missing", Severity.SEV1, Blame.NODE)
    assert detail == "nvidia-smi lists 7 GPUs, the job asked for 8; GPU 3: Unknown Error"


@pytest.mark.parametrize(
    "report", [NodeReport(gpu_problem="no nvidia-smi on PATH"), NodeReport(gpu_seconds=8.0)]
)
def test_gpus_that_cannot_be_counted_are_a_warning_where_they_are_needed(report: NodeReport) -> None:
    ((_, severity),) = errors(report, 8)
    assert severity is Severity.INFO
    assert errors(report, 0) == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOENT])
def test_a_node_that_cannot_write_the_run_folder_is_out(number: int) -> None:
    assert errors(NodeReport(write_error=(number, "?"))) == [("run folder not writable", Severity.SEV1)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_nodes_fault(number: int) -> None:
    assert errors(NodeReport(write_error=(number, "?"))) == [("run folder is full", Severity.INFO)]


@pytest.mark.parametrize(
    ("report", "error"),
    [
        (NodeReport(memory=GIB // 2), "little memory is free"),
        (NodeReport(shared_memory=64 * 2**20), "little shared memory is free"),
        (NodeReport(disk=GIB // 2), "run folder is nearly full"),
        (NodeReport(write_seconds=9.0), "run folder is slow"),
        (NodeReport(folder_seconds=8.0), "run folder is slow"),
    ],
)
def test_what_may_become_a_trouble_is_a_warning(report: NodeReport, error: str) -> None:
    assert errors(report) == [(error, Severity.INFO)]

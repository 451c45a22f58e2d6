"""What an exception in a rank means."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detect.field_cases import CASES
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.severity import Blame, Finding, Severity

#: Lines that reach us as an exception's text; kernel and Slurm messages do not pass through a rank.
FROM_RANKS = [
    f"log_line-{n}" for n in ("15", "17", "19", "21", "23", "25", "27", "29", "47", "49", "51", "53")
]


@pytest.mark.parametrize("case_id", FROM_RANKS)
def test_a_line_from_the_field_costs_a_node_exactly_when_the_node_is_bad(case_id: str) -> None:
    case = CASES[case_id]
    finding = explain_exception(case["input"])
    expected = case["expected"]
    assert (finding.severity is Severity.SEV1) == expected.get("drain", False)
    if expected["class"] == "application":
        assert finding.severity is Severity.PROGRAM
    else:
        assert finding.severity is not Severity.PROGRAM
    if expected["class"] == "symptom":
        assert finding.collateral


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        # The table of the paper: exception propagation, by severity.
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Severity.SEV1),
        ("RuntimeError: CUDA error: invalid DMA mapping", Severity.SEV1),
        ("RuntimeError: NVLink error on link 3", Severity.SEV1),
        ("RuntimeError: GPU is lost. Reboot the system to recover this GPU", Severity.SEV1),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Severity.SEV2),
        ("RuntimeError: CUDA error: device-side assert triggered", Severity.SEV2),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", Severity.SEV2),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
            Severity.SEV2,
        ),
        ("ConnectionRefusedError: [Errno 111] Connection refused", Severity.SEV3),
        ("DistBackendError: NCCL error: remote process exited or there was a network error", Severity.SEV3),
        ("RuntimeError: Connection reset by peer", Severity.SEV3),
        (
            "RuntimeError: [/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41",
            Severity.SEV3,
        ),
        ("RuntimeError: NCCL communicator timed out", Severity.SEV3),
        # The program's own.
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Severity.PROGRAM),
        ("MemoryError: ", Severity.PROGRAM),
        ("AssertionError: hidden size must be divisible by heads", Severity.PROGRAM),
        ("ModuleNotFoundError: No module named 'apex'", Severity.PROGRAM),
        ("ProgramFault: loss is nan in iteration 7", Severity.PROGRAM),
        ("KeyError: 'rope_scaling'", Severity.PROGRAM),
    ],
)
def test_the_severity_of_an_error(error: str, severity: Severity) -> None:
    assert explain_exception(error).severity is severity


@pytest.mark.parametrize(
    "error",
    [
        "GroupsCut: groups cut",
        "PeerLost: connection closed",
        "EpochOver: ",
        "RuntimeError: Connection closed by peer [127.0.0.1]:4711",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "TimeoutError: The read operation timed out",
    ],
)
def test_a_rank_that_only_saw_a_peer_go_is_not_the_cause(error: str) -> None:
    finding = explain_exception(error)
    assert finding.collateral
    assert finding.severity is Severity.SEV3


def test_a_bad_node_is_seen_behind_a_lost_connection() -> None:
    both = "RuntimeError: Connection closed by peer after uncorrectable ECC error"
    assert explain_exception(both).severity is Severity.SEV1


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_an_unknown_text_never_crashes_and_is_explained_always_alike(error: str) -> None:
    finding = explain_exception(error)
    assert isinstance(finding, Finding)
    assert finding == explain_exception(error)
    assert finding.error


@pytest.mark.parametrize(
    "error", ["", ":", "StrangeError: never seen before", "\x00", "OSError: [Errno 5] EIO"]
)
def test_an_unknown_exception_costs_the_process_not_the_node(error: str) -> None:
    assert explain_exception(error) == Finding("exception in a rank", Severity.SEV2)


def test_a_guess_that_the_program_is_wrong_gets_a_new_process_first() -> None:
    """By its words only; what says so by its class stops the run."""
    guessed = explain_exception("RuntimeError: the two halves must have the same size")
    assert (guessed.severity, guessed.blame) == (Severity.SEV2, Blame.PROGRAM)
    assert explain_exception("TypeError: unsupported operand").severity is Severity.PROGRAM

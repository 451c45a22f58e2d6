"""Verdicts on incidents: what counts as what, when they are told, and when again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.supervisor.test_incident import from_field
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.exits import HOST_MEMORY, explain_exit
from unicron_hpc.detect.severity import LOST_CONNECTION, NOT_ANSWERING, Finding, Method
from unicron_hpc.report.journal import EVENTS, Journal, read_lines
from unicron_hpc.supervisor.incident import Evidence, Incident
from unicron_hpc.supervisor.verdicts import Verdicts

BROKEN = explain_exception("RuntimeError: Connection closed by peer")
KILLED = explain_exit(-9)


def seen(
    finding: Finding, rank: int | None, node: str, when: float, method: Method = Method.PROCESS
) -> Evidence:
    return Evidence(finding, method, node, rank, "its words", when)


class Court:
    """Verdicts on one incident, whose evidence grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder)
        self.verdicts = Verdicts("tiny", self.journal)
        self.incident = Incident(1, 0)

    def hear(self, *evidence: Evidence) -> dict[str, Any]:
        for piece in evidence:
            self.incident.add(piece)
        self.verdicts.tell(self.incident, None, 3)
        return self.told[-1]

    @property
    def told(self) -> list[dict[str, Any]]:
        assert self.journal.flush_file(10.0)
        return list(read_lines(self.folder / EVENTS))


def test_a_lost_node_explains_the_ranks_that_died_with_it(tmp_path: Path) -> None:
    verdict = Court(tmp_path).hear(
        seen(KILLED, 2, "n3", 0.5),
        seen(BROKEN, 1, "n2", 1.1, Method.EXCEPTION),
        seen(LOST_CONNECTION, None, "n3", 0.8, Method.NODE_HEALTH),
    )
    assert (verdict["error"], verdict["suspects"], verdict["nodes"]) == ("lost connection", [2], ["n3"])
    assert verdict["victims"] == [1]


def test_but_not_the_broken_hardware_that_a_rank_had_told_of(tmp_path: Path) -> None:
    ecc = explain_exception("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    verdict = Court(tmp_path).hear(
        seen(ecc, 2, "n3", 1.0), seen(LOST_CONNECTION, None, "n3", 1.5, Method.NODE_HEALTH)
    )
    assert (verdict["error"], verdict["suspects"], verdict["nodes"]) == ("ECC error", [2], ["n3"])


def test_a_kill_for_want_of_memory_is_named_only_where_one_was(tmp_path: Path) -> None:
    court = Court(tmp_path)
    court.hear(seen(KILLED, 2, "n3", 1.0))
    verdict = court.hear(seen(HOST_MEMORY, None, "n3", 1.1, Method.NODE_HEALTH))
    assert (verdict["error"], verdict["suspects"], verdict["corrects"]) == ("host out of memory", [2], True)


def test_a_rank_that_does_not_answer_goes_before_those_that_lost_it(tmp_path: Path) -> None:
    verdict = Court(tmp_path).hear(
        seen(BROKEN, 0, "n1", 1.0, Method.EXCEPTION), seen(NOT_ANSWERING, 2, "n3", 6.0, Method.STATISTICS)
    )
    assert (verdict["suspects"], verdict["victims"], verdict["nodes"]) == ([2], [0], ["n3"])


def test_a_death_goes_before_a_rank_that_does_not_answer(tmp_path: Path) -> None:
    verdict = Court(tmp_path).hear(
        seen(NOT_ANSWERING, 2, "n3", 6.0, Method.STATISTICS), seen(KILLED, 1, "n2", 6.5)
    )
    assert verdict["suspects"] == [1]


def test_nobody_is_named_where_all_only_lost_a_peer(tmp_path: Path) -> None:
    verdict = Court(tmp_path).hear(
        *(seen(BROKEN, rank, f"n{rank + 1}", 1.0, Method.EXCEPTION) for rank in (0, 1))
    )
    assert (verdict["suspects"], verdict["nodes"]) == ([], [])


def test_the_same_is_not_told_twice(tmp_path: Path) -> None:
    court = Court(tmp_path)
    court.hear(seen(KILLED, 2, "n3", 1.0))
    court.hear(seen(BROKEN, 0, "n1", 1.1, Method.EXCEPTION))
    assert len(court.told) == 1


def test_each_witness_is_heard_with_place_time_method_and_words(tmp_path: Path) -> None:
    verdict = Court(tmp_path).hear(seen(KILLED, 2, "n3", 1.0), seen(BROKEN, 0, "n1", 1.1, Method.EXCEPTION))
    first, second = verdict["evidence"]
    assert first.startswith("rank 2 on n3 at +0.0 s: killed (SIGKILL): by process supervision: its words")
    assert second.startswith("rank 0 on n1 at +0.1 s: ")


def test_sequences_from_the_field_have_their_suspects(tmp_path: Path) -> None:
    silent = [{"t": 0.0, "rank": 5, "event": "silent"}, {"t": 600.0, "rank": 1, "event": "nccl_timeout"}]
    verdict = Court(tmp_path).hear(*(from_field(entry) for entry in silent))
    assert verdict["nodes"] == ["n5"]


ILLEGAL = explain_exception("RuntimeError: CUDA error: an illegal memory access was encountered")


def test_a_rank_that_failed_on_one_node_is_not_named_on_the_node_that_took_its_seat(tmp_path: Path) -> None:
    verdict = Court(tmp_path).hear(seen(ILLEGAL, 1, "n2", 1.0, Method.EXCEPTION), seen(KILLED, 1, "n4", 5.0))
    assert (verdict["error"], verdict["suspects"], verdict["nodes"]) == ("illegal memory access", [1], ["n2"])


def test_a_rank_that_only_complained_on_one_node_is_named_on_the_one_where_it_failed(tmp_path: Path) -> None:
    verdict = Court(tmp_path).hear(
        seen(BROKEN, 1, "n2", 1.0, Method.EXCEPTION), seen(ILLEGAL, 1, "n4", 5.0, Method.EXCEPTION)
    )
    assert (verdict["suspects"], verdict["nodes"]) == ([1], ["n4"])

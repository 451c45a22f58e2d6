"""The last lines of a rank's log."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.supervisor.rank_log import TAIL_BYTES, LastLines, RankLog


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def test_what_an_earlier_process_wrote_is_not_its_successors(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "Traceback of the first\n")
    log = RankLog(path)
    log.begin()
    assert log.last_lines() == LastLines("", "")
    append(path, "mine\n")
    assert log.last_lines() == LastLines("mine\n", "mine\n")


def test_what_was_written_before_the_last_report_is_evidence_but_no_last_word(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "log")
    log.begin()
    append(log.path, "told\n")
    log.mark()
    append(log.path, "new\n")
    assert log.last_lines() == LastLines("told\nnew\n", "new\n")


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\ufffd"), max_size=40), st.integers(0, 200))
def test_a_long_log_is_cut_between_characters_and_lines(line: str, told: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = RankLog(Path(folder) / "log")
        log.begin()
        append(log.path, "é" * told)
        log.mark()
        append(log.path, (line.replace("\n", "ä") + "ü\n") * 3000)
        last = log.last_lines()
        assert len(last.tail.encode()) <= TAIL_BYTES
        assert "\ufffd" not in last.tail
        assert last.tail.endswith(last.words)
        assert set(last.tail.splitlines()) <= {line.replace("\n", "ä") + "ü"} | set(
            (line.replace("\n", "ä") + "ü").splitlines()
        )


def test_a_log_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "none" / "log")
    log.begin()
    log.mark()
    assert log.last_lines() == LastLines("", "")

"""The journal: whole lines, whatever became of who wrote before."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unicron_hpc.report.appender import Appender
from unicron_hpc.report.journal import EVENTS, Journal, read_events, read_lines, write_whole


def test_an_event_is_one_line_with_time_type_and_epoch(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("agent_joined", 3, node="n1", text="two\nlines")
    journal.close()
    (line,) = (tmp_path / EVENTS).read_text().splitlines()
    event = json.loads(line)
    assert isinstance(event.pop("time"), float)
    assert event == {"type": "agent_joined", "epoch": 3, "node": "n1", "text": "two\nlines"}


def test_an_event_can_say_when_it_happened(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("fault_detected", 1, time=12.5)
    journal.close()
    assert [event["time"] for event in read_lines(tmp_path / EVENTS)] == [12.5]


def test_only_the_owner_reads_the_journal(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    assert stat.S_IMODE((tmp_path / EVENTS).stat().st_mode) == 0o600


@pytest.mark.parametrize("rest", ['{"type": "rank_ex', "{", '{"type": "whole", "epoch": 1}'])
def test_the_line_a_dying_predecessor_left_without_its_end_spoils_no_other(tmp_path: Path, rest: str) -> None:
    (tmp_path / EVENTS).write_text('{"type": "first", "epoch": 1}\n' + rest)
    journal = Journal(tmp_path)
    journal.write("second", 2)
    journal.close()
    kinds = [event["type"] for event in read_lines(tmp_path / EVENTS)]
    assert kinds in (["first", "second"], ["first", "whole", "second"])


def test_a_whole_journal_gets_no_empty_line_from_its_next_writer(tmp_path: Path) -> None:
    for number in range(3):
        journal = Journal(tmp_path)
        journal.write("coordinator_elected", number)
        journal.close()
    assert (tmp_path / EVENTS).read_text().count("\n") == 3


def test_a_writer_killed_in_the_middle_leaves_nothing_but_whole_lines_and_one_rest(tmp_path: Path) -> None:
    """The other process writes until it is killed, lines of 100 kB."""
    program = (
        "import sys; from pathlib import Path; from unicron_hpc.report.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1])); print('up', flush=True)\n"
        "while True: journal.write('long', 1, text='x' * 100_000)"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.kill()
    writer.wait()
    writer.stdout.close()
    journal = Journal(tmp_path)
    journal.write("after", 2)
    journal.close()
    *before, last = read_lines(tmp_path / EVENTS)
    assert last["type"] == "after"
    assert all(len(event["text"]) == 100_000 for event in before)


def test_writers_at_the_same_time_do_not_mix_their_lines(tmp_path: Path) -> None:
    """A coordinator that does not know yet that it was succeeded writes beside its successor."""

    def write(number: int) -> None:
        journal = Journal(tmp_path)
        for _ in range(20):
            journal.write("x", number, text=str(number) * 5000)
        journal.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    events = list(read_lines(tmp_path / EVENTS))
    assert len(events) == 80
    assert all(event["text"] == str(event["epoch"]) * 5000 for event in events)


def test_after_closing_nothing_is_written_to_whatever_has_the_descriptor_now(tmp_path: Path) -> None:
    """Work that was under way when the office ended still reports; its number may be a socket's by then."""
    appender = Appender(tmp_path / "one")
    appender.close()
    with open(tmp_path / "two", "wb"):  # takes the lowest free descriptor: the one just closed
        appender.append({"late": True})
        appender.close()
    assert (tmp_path / "two").read_bytes() == b""
    assert (tmp_path / "one").read_bytes() == b""


FULL = """
import resource, sys
from pathlib import Path
from unicron_hpc.report.appender import Appender
path = Path(sys.argv[1])
appender = Appender(path)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
appender.append({"n": 0})
assert appender.flush(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (30, hard))  # as a full disk: a short write, then an error
for n in range(1, 6):
    appender.append({"n": n})
while path.stat().st_size < 30:
    pass
assert not appender.flush(0.1)
assert path.stat().st_size == 30
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
appender.append({"n": 6})
appender.close()
"""


def test_what_a_full_disk_refuses_ends_nobody_and_is_written_when_there_is_room(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "m")], check=True, capture_output=True)
    assert list(read_lines(tmp_path / "m")) == [{"n": n} for n in range(7)]


def test_readers_pass_over_what_is_damaged_or_absent(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "none")) == []
    (tmp_path / "bad").write_bytes(b'{"a": 1}\n\n[1]\nnonsense\n\xff\xfe\n7\n{"a": 2}\n{"a": 3')
    assert list(read_lines(tmp_path / "bad")) == [{"a": 1}, {"a": 2}]


def test_numbers_that_json_has_no_word_for_come_back(tmp_path: Path) -> None:
    appender = Appender(tmp_path / "m")
    appender.append({"loss": float("inf")})
    appender.close()
    assert list(read_lines(tmp_path / "m")) == [{"loss": float("inf")}]


def test_a_whole_file_replaces_the_one_before_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, {"state": "failed"})
    write_whole(path, {"state": "finished"})
    assert json.loads(path.read_text()) == {"state": "finished"}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_cannot_be_written_leaves_the_file_before_in_place(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, {"state": "failed"})
    with pytest.raises(TypeError):
        write_whole(path, {"state": object()})
    assert json.loads(path.read_text()) == {"state": "failed"}


@pytest.mark.parametrize(
    "line",
    [
        '{"time": 1.0, "epoch": 1}',
        '{"type": "job_started", "epoch": 1}',
        '{"time": 1.0, "type": "job_started"}',
        '{"time": "1", "type": "job_started", "epoch": 1}',
        '{"time": 1e308, "type": "job_started", "epoch": 1}',
        '{"time": NaN, "type": "job_started", "epoch": 1}',
        '{"time": -1.0, "type": "job_started", "epoch": 1}',
        '{"time": 1.0, "type": 5, "epoch": 1}',
        '{"time": 1.0, "type": "job_started", "epoch": null}',
    ],
)
def test_a_record_without_an_events_fields_is_no_event(line: str, tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text(line + '\n{"time": 2.0, "type": "agent_joined", "epoch": 0}\n')
    assert [event["type"] for event in read_events(tmp_path / EVENTS)] == ["agent_joined"]

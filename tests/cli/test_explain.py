"""`unicron explain`: logs of every make in, what went wrong out."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.detect.field_cases import CASES
from unicron_hpc.cli import explain
from unicron_hpc.cli.log_files import LONGEST_LINE, LogError, lines, open_log
from unicron_hpc.cli.main import COMMANDS

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
PEER = "RuntimeError: Connection closed by peer [10.0.0.2]:41"


def run(*words: str | Path, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(explain.command, [str(word) for word in words], input=stdin)


def findings(*words: str | Path) -> list[dict[str, Any]]:
    done = run("--json", *words)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(f"start\n{ECC}\n")
    return path


def test_it_is_a_sub_command() -> None:
    assert "explain" in COMMANDS


def test_json_is_a_list_of_findings_with_the_names_that_are_promised(log: Path) -> None:
    (found,) = findings(log)
    promised = {
        "file": str(log), "line_number": 2, "line": ECC, "error": "ECC error", "severity": "SEV1",
        "blame": "node", "first_cause": True, "collateral": False, "drain": True,
    }  # fmt: skip
    assert {key: found[key] for key in promised} == promised
    assert found["advice"]


def test_people_are_told_cause_consequences_and_what_to_do(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "rank7.log"
    other.write_text(PEER)
    text = run(log, other).stdout
    first, _, rest = text.partition("Consequences")
    assert "ECC error  [SEV1, blame: node, have it drained]" in first
    assert f"{log}:2" in first
    assert "->" in first
    assert "rank 7" in rest


def test_a_healthy_log_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("iteration 1 | lm loss: 2.1 | number of nan iterations: 0 |")
    assert "Nothing" in run(tmp_path / "run.log").stdout
    assert findings(tmp_path / "run.log") == []


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_logs_are_read(pack: Any, log: Path) -> None:
    packed = log.with_name("packed")
    packed.write_bytes(pack(log.read_bytes()))
    assert [found["error"] for found in findings(packed)] == ["ECC error"]


def test_a_damaged_log_is_named_and_the_others_are_told_all_the_same(log: Path) -> None:
    damaged = log.with_name("damaged.gz")
    damaged.write_bytes(gzip.compress(log.read_bytes() * 9)[:-12])
    done = run(damaged, log)
    assert done.exit_code == 1
    assert str(damaged) in done.stderr
    assert "ECC error" in done.stdout


@pytest.mark.parametrize(("name", "words"), [("none.log", "no such file"), (".", "is a folder")])
def test_a_log_that_cannot_be_read_is_an_error_with_its_name(name: str, words: str, tmp_path: Path) -> None:
    done = run(tmp_path / name)
    assert (done.exit_code, done.stdout) == (1, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    "raw",
    [
        f"start\r\n{ECC}\r\nend\r\n".encode(),
        f"50%\r99%\r{ECC}".encode(),
        f"\x1b[31m{ECC}\x1b[0m".encode(),
        ECC.replace("ECC", "\x1b[1mECC\x1b[0m").encode(),
        b"\xff\xfe\x00" * 999 + b"\n" + ECC.encode(),
        ECC.encode() + b" x" * (1 << 20),
        b"\xc3\x28 \n" + ECC.encode(),
    ],
)
def test_line_ends_colours_and_garbage_do_not_hide_an_error(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes(raw)
    assert [found["error"] for found in findings(tmp_path / "run.log")] == ["ECC error"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\x28\xb5\x2f\xfd\x04", "zstd -dc"),
        (b"\x04\x22\x4d\x18\x64", "lz4 -dc"),
        (b"PK\x03\x04\x14", "unzip -p"),
        (ECC.encode("utf-16-le").join([b"\xff\xfe", b""]), "iconv"),
        (ECC.encode("utf-16-be").join([b"\xfe\xff", b""]), "iconv"),
    ],
)
def test_a_kind_that_is_not_read_is_refused_with_the_command_that_makes_text_of_it(
    raw: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_bytes(raw)
    done = run(tmp_path / "run.log")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{words}" in done.stderr
    assert str(tmp_path / "run.log") in done.stderr


@pytest.mark.parametrize(
    ("raw", "words"),
    [(b"", "is empty"), (b"\n\n", "is empty"), (bytes(range(256)) * 9, "hardly any text"), (b"a\n", "")],
)
def test_a_log_that_is_none_is_doubted(raw: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes(raw)
    done = run(tmp_path / "run.log")
    assert done.exit_code == 0
    assert words in done.stderr
    assert bool(words) == bool(done.stderr)


class Endless(io.RawIOBase):
    """A file without line ends that would not fit into memory."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.largest = 0

    def read(self, size: int = -1) -> bytes:
        self.largest = max(self.largest, size)
        part = min(size, self.left)
        self.left -= part
        return bytes(part)


def test_a_log_is_read_piece_by_piece_and_a_line_without_end_is_cut() -> None:
    file = Endless(64 << 20)
    tracemalloc.start()
    (line,) = lines(file)  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert (line[0], len(line[1])) == (1, LONGEST_LINE)
    assert 0 < file.largest <= 1 << 20


@pytest.mark.parametrize("raw", [b"a\nb\n", b"a\nb", b"a\r\nb\r\n"])
def test_lines_are_numbered_from_one(raw: bytes) -> None:
    assert list(lines(io.BytesIO(raw))) == [(1, b"a"), (2, b"b")]


def test_site_rules_come_before_the_built_in_ones(log: Path, tmp_path: Path) -> None:
    rule = "{name: mine, pattern: uncorrectable ECC, error: ours, severity: SEV2, blame: process, meaning: m}"
    (tmp_path / "site.yaml").write_text(f"rules: [{rule}]")
    assert [found["error"] for found in findings("--rules", tmp_path / "site.yaml", log)] == ["ours"]
    (tmp_path / "site.yaml").write_text("rules: [{name: mine}]")
    done = run("--rules", tmp_path / "site.yaml", log)
    assert done.exit_code == 2
    assert "site.yaml:1:" in done.stderr


SEQUENCES = [case for case in CASES.values() if case["kind"] == "failure_sequence"]


@pytest.mark.parametrize("case", SEQUENCES, ids=lambda case: case["id"])
def test_a_sequence_of_reports_is_judged(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "reports.json"
    path.write_text(json.dumps(case["input"]))
    told = json.loads(run("--sequence", path, "--json").stdout)
    assert {"suspect", "victims", "collateral", "action"} <= set(told)
    expected = {key: value for key, value in case["expected"].items() if key != "note"}
    assert {key: told[key] for key in expected} == expected
    people = run("--sequence", path).stdout
    assert "action:" in people
    assert "evidence:" in people


def test_a_sequence_may_tell_the_groups(tmp_path: Path) -> None:
    reports = [{"t": 600.0, "rank": rank, "event": "nccl_timeout"} for rank in (0, 1, 3)]
    path = tmp_path / "reports.json"
    path.write_text(json.dumps({"reports": reports, "groups": [[0, 1], [2, 3], [0, 2], [1, 3]]}))
    assert json.loads(run("--sequence", path, "--json").stdout)["suspect"] == [2]


def test_all_of_several_lost_nodes_are_shown(tmp_path: Path) -> None:
    lost: list[dict[str, Any]] = [{"t": 0.1 * k, "node": f"n{k}", "event": "node_lost"} for k in (1, 2)]
    lost.append({"t": 0.3, "rank": 0, "event": "connection_reset"})
    path = tmp_path / "reports.json"
    path.write_text(json.dumps(lost))
    text = run("--sequence", path).stdout
    assert ("suspect:    nodes n1, n2" in text, "drain the nodes" in text) == (True, True)
    path.write_text(json.dumps({"reports": lost, "nodes": {"2": "n1", "3": "n2", "0": "n0"}}))
    assert "suspect:    ranks 2-3\nnodes:      n1, n2\nvictims:    rank 0" in run("--sequence", path).stdout
    told = json.loads(run("--sequence", path, "--json").stdout)
    assert (told["suspect"], told["suspect_node"], told["suspect_nodes"]) == ([2, 3], "n1", ["n1", "n2"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ('{"rank": 1}\n{"rank": 2}', "write [{"),
        ('{"reports": [], "nodes": {"x": "n1"}}', "reports.json: not a structure of ranks"),
        ("3", "holds no list of reports"),
        ("[3]", "holds no list of reports"),
        ('[{"t": "soon"}]', "report 0: t: expected a number"),
        ('[{"t": 0}, {"rank": 1.5}]', "report 1: rank: expected a whole number"),
        ('[{"t": 0, "rank": true}]', "report 0: rank: expected a number"),
        ('{"reports": [], "groups": [["a"]]}', "not a structure of ranks"),
        ("", "reports.json: is empty"),
        ("[" * 100_000, "is no JSON that can be meant"),
        ('{"rank": 1}\n{"rank": 2}', "jq -s ."),
        ('[{"t": 0, "event": "silent"}]', "report 0: rank: missing"),
        ('[{"t": 0, "who": 3}]', "report 0: says nothing that is known: it has only 'who'"),
    ],
)
def test_a_sequence_that_is_none_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "reports.json"
    path.write_text(text)
    done = run("--sequence", path)
    assert done.exit_code == 1
    assert words in done.stderr


def test_it_asks_for_a_file_and_not_for_two_kinds() -> None:
    assert run().exit_code == 2
    assert run("--sequence", "a.json", "b.log").exit_code == 2


def test_help_teaches_with_examples() -> None:
    text = run("--help").stdout
    for word in ("unicron explain --json", "dmesg |", "--sequence", "SEV1", "Exit code"):
        assert word in text


def test_a_closed_standard_input_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", None)
        with pytest.raises(LogError, match="standard input: is closed"):
            open_log("-").__enter__()


def test_a_sequence_that_is_not_read_is_refused_with_the_command_for_sequences(
    tmp_path: Path,
) -> None:
    path = tmp_path / "reports.json"
    path.write_bytes("[]".encode("utf-16"))
    assert f"{path} | unicron explain --sequence -" in run("--sequence", path).stderr

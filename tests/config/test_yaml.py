"""Reading YAML: places, duplicate keys, and none of YAML 1.1's surprises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.settings_text import VALID, changed, load_text, problems
from tests.slurm.field_cases import case, cases
from unicron_hpc.config import SettingsError, load
from unicron_hpc.config.raw import parse

_HANDLED = {"yaml-01", "yaml-03", "yaml-05", "yaml-07", "yaml-09", "yaml-11", "yaml-13", "yaml-15"}


def _in_slurm(line: str) -> str:
    return changed("  spares: 1\n", "  spares: 1\n" + "".join(f"  {part}\n" for part in line.split("\n")))


def test_every_case_from_the_field_is_tested_below() -> None:
    assert {c.id for c in cases("yaml")} == _HANDLED


@pytest.mark.parametrize(("case_id", "seconds"), [("yaml-01", 259200), ("yaml-03", 86400)])
def test_a_time_is_never_taken_for_a_number(case_id: str, seconds: int) -> None:
    settings = load_text(_in_slurm(case(case_id)[0]))
    assert settings.slurm.time_seconds == seconds
    assert settings.slurm.time == case(case_id)[0].removeprefix("time: ")


def test_no_is_false_where_true_or_false_is_wanted() -> None:
    assert load_text(_in_slurm("contiguous: no")).slurm.contiguous is False
    assert load_text(_in_slurm("contiguous: yes")).slurm.contiguous is True


@pytest.mark.parametrize("word", ["no", "On", "true", "YES"])
def test_no_is_refused_where_text_is_wanted_unless_quoted(word: str) -> None:
    assert case("yaml-05")[0] == "overlap: no"
    assert problems(_in_slurm(f"partition: {word}")) == [
        f"train.yaml:5:14: slurm.partition: expected text, found {word}, which YAML takes for true or false"
        f' | write "{word}" in quotes if text is meant'
    ]
    assert load_text(_in_slurm(f'partition: "{word}"')).slurm.partition == word


def test_an_octal_number_is_refused_where_text_is_wanted_unless_quoted() -> None:
    (problem,) = problems(_in_slurm(case("yaml-07")[0]))
    assert problem.startswith("train.yaml:5:12: slurm.account: expected text, found the number 0123")
    assert problem.endswith('write "0123" in quotes')
    assert load_text(_in_slurm("account: '0123'")).slurm.account == "0123"
    assert load_text(_in_slurm("account: 4711")).slurm.account == "4711"


def test_a_number_in_exponent_form_is_a_number() -> None:
    for text, value in (("1e-5", 1e-5), ("1.0e-5", 1e-5), ("3E-4", 3e-4), (".001", 1e-3), ('"1e-5"', 1e-5)):
        assert load_text(changed("lr: 1e-3", f"lr: {text}")).train.lr == value


def test_duplicate_keys_are_named_with_both_lines() -> None:
    text = VALID.replace("  nodes: 4\n", "  " + case("yaml-09")[0].replace("\n", "\n  ") + "\n")
    assert problems(text) == [
        "train.yaml:4:3: duplicate key 'nodes', first given in line 3 | remove one of the two"
    ]


def test_all_duplicate_keys_are_named() -> None:
    assert len(problems(VALID + "data: {}\nmodel: {}\n")) == 2


def test_a_hostlist_may_be_a_list() -> None:
    text, expected = case("yaml-11")
    assert load_text(_in_slurm(text)).slurm.exclude == ",".join(expected["value"])
    assert load_text(_in_slurm("exclude: n[1-3],login")).slurm.exclude == "n[1-3],login"


@pytest.mark.parametrize(
    "text", [case("yaml-13")[0], "\n\n", "# nothing\n", "---\n", "---\n...\n", "null", "\ufeff"]
)
def test_an_empty_file_is_said_to_be_empty(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match="the file is empty"):
        load(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "holds a list"),
        ("just words\n", "holds a single value"),
        ("a: 1\n---\nb: 2\n", "more than one document"),
        ("a:\n\tb: 1\n", "no tabs"),
        ("a: b: c\n", "quotes"),
        ("a: [1, 2\n", "not valid YAML"),
        ("a: *nowhere\n", "undefined alias"),
        ("a: &x [*x]\n", "refers to itself"),
        ("a: !!python/object:os.system {}\n", "not supported"),
        ("a: !secret x\n", "not supported"),
        ("? [a]\n: b\n", "a key must be a word"),
        ("a: \x01\n", "cannot be in YAML"),
        ("[" * 2000, "nested too deeply"),
    ],
)
def test_what_is_no_settings_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        load_text(text)
    assert all(problem.where.startswith("train.yaml") for problem in caught.value.problems)


def test_aliases_that_expand_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 12)]
    with pytest.raises(SettingsError, match="too many values"):
        parse("\n".join(lines), "t.yaml")


def test_merge_keys_bring_shared_settings_in() -> None:
    text = VALID + "tasks:\n- &one {name: a, weight: 2}\n- <<: *one\n  name: b\n"
    assert [(t.name, t.weight) for t in load_text(text).tasks] == [("a", 2.0), ("b", 2.0)]


@pytest.mark.parametrize("mark", ["\ufeff", ""])
@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_files_from_other_systems_are_read(tmp_path: Path, mark: str, end: str) -> None:
    (tmp_path / "corpus.txt").touch()
    text = VALID.replace("/data/corpus.txt", "corpus.txt")
    (tmp_path / "t.yaml").write_bytes((mark + text.replace("\n", end)).encode())
    assert load(tmp_path / "t.yaml").name == "tiny"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("name: x".encode("utf-16"), "UTF-16"),
        (b"name: \xff\xfe\n", "not UTF-8"),
        (b"\x7fELF\x00\x01", "cannot be in YAML|not UTF-8"),
        (b"#" * (1 << 21), "too much"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "t.yaml").write_bytes(data)
    with pytest.raises(SettingsError, match=message):
        load(tmp_path / "t.yaml")


def test_a_file_that_is_not_there_suggests_one_that_is(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").touch()
    with pytest.raises(SettingsError, match="no such file") as caught:
        load(tmp_path / "trian.yaml")
    assert str(tmp_path / "train.yaml") in caught.value.hint
    with pytest.raises(SettingsError, match="is not a file"):
        load(tmp_path)

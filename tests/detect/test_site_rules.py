"""Rules of a site: on top of the table, checked with line and suggestion, and used by the job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unicron_hpc.config import SettingsError
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.kernel_log import KernelLog
from unicron_hpc.detect.severity import Blame, Severity
from unicron_hpc.detect.site_rules import parse_rules, read_rules, use_rules_of
from unicron_hpc.detect.table import FAMILIES, families, use_table

GOOD = r"""
rules:
- name: leaf-flap
  pattern: 'leaf\d+ port flap'
  error: link flapping
  severity: SEV3
  blame: network
  meaning: A leaf switch lost a port.
- name: our-xid-13
  xid: 13
  error: worn-out GPU
  severity: SEV1
  blame: node
  meaning: On our old cards this is the card.
"""
RULE = GOOD.partition("- name: our-xid-13")[0]


@pytest.fixture(autouse=True)
def _own_table() -> Iterator[None]:
    yield
    use_table(None)


def problem(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_rules(text, "site.yaml")
    return str(caught.value)


def test_a_file_of_rules_is_read() -> None:
    flap, xid = parse_rules(GOOD, "site.yaml")
    assert flap.fits("switch: LEAF12 port flap")
    assert xid.fits("NVRM: Xid (PCI:0000:1b:00): 13, pid=99")
    assert (xid.drains, flap.drains) == (True, False)


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("error:", "eror:", "site.yaml:5:3", "did you mean `error`?"),
        ("SEV3", "SEV4", "site.yaml:6:13", "found 'SEV4'"),
        ("network", "nework", "site.yaml:7:10", "did you mean `network`?"),
        (r"'leaf\d+ port flap'", "'(leaf'", "site.yaml:4:12", "not a regular expression"),
        (r"'leaf\d+ port flap'", "'(leaf)*'", "site.yaml:4:12", "fits every line"),
        (r"'leaf\d+ port flap'", "'.'", "site.yaml:4:12", "fits every line"),
        (r"'leaf\d+ port flap'", r"'\w+'", "site.yaml:4:12", "fits every line"),
        (
            r"'leaf\d+ port flap'",
            r"'leaf (\d+\.?)+ flap'",
            "site.yaml:4:12",
            "can take very long: a repeat inside",
        ),
        (
            r"'leaf\d+ port flap'",
            r"'leaf (\d+\.?)+ flap'",
            "site.yaml:4:12",
            "have the inner repeat give nothing",
        ),
        ("link flapping", "''", "site.yaml:5:10", "expected text, found nothing"),
        ("A leaf switch lost a port.", "''", "site.yaml:8:12", "expected text, found nothing"),
        (r"  pattern: 'leaf\d+ port flap'" + "\n", "", "site.yaml:3:3", "neither pattern nor xid"),
        ("meaning: A leaf", "drain: true\n  meaning: A leaf", "site.yaml:8:10", "not drained"),
        ("meaning: A leaf", "example: other\n  meaning: A leaf", "site.yaml:8:12", "its own example"),
        ("  meaning: A leaf switch lost a port.\n", "", "site.yaml:3:3", "add `meaning:`"),
        ("pattern: 'leaf", "xid: [1, x]\n  pattern: 'leaf", "site.yaml:4:12", "a whole number"),
        ("rules:\n", "rule:\n", "site.yaml:2:1", "unknown key"),
        (RULE, RULE + RULE.partition("rules:\n")[2], "site.yaml:9:9", "stands in line 3"),
        (RULE, "rules:\n- 12\n", "site.yaml:2:3", "expected a rule"),
        (RULE, "rules: leaf\n", "site.yaml:1:8", "expected a list of rules"),
        (RULE, "- leaf\n", "site.yaml:1:1", "rules: [{name:"),
        (RULE, "- leaf\n- spine\n", "site.yaml:1:1", "rules: [{name:"),
        (RULE, "rules: [leaf, spine]\n", "site.yaml:1:15", "rules.1: expected a rule"),
        (RULE, "rules:\n\t- name: leaf\n", "site.yaml:2:1", "indent with spaces"),
        (RULE, "", "site.yaml:1", "write `rules: [{name:"),
        (RULE, "# later\n\n", "site.yaml:1", "or leave out the setting that names it"),
    ],
)
def test_a_mistake_has_its_place_and_says_what_to_write(old: str, new: str, place: str, words: str) -> None:
    assert old in RULE
    text = problem(RULE.replace(old, new))
    assert place in text
    assert words in text


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    text = problem(GOOD.replace("SEV3", "SEV4").replace("blame: node", "blame: nod"))
    assert "rules.0.severity" in text
    assert "rules.1.blame" in text


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("\ufeff" + GOOD, "utf-8")
    assert [rule.name for rule in read_rules(tmp_path / "rules.yaml")] == ["leaf-flap", "our-xid-13"]


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(GOOD + "#" * (1 << 20))
    with pytest.raises(SettingsError, match="too much for settings"):
        read_rules(tmp_path / "rules.yaml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        read_rules(tmp_path / "rules.yaml")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80).map(lambda text: "rules:\n- name: a\n  pattern: " + text))
def test_no_text_does_anything_but_be_read_or_be_refused(text: str) -> None:
    with contextlib.suppress(SettingsError):
        assert all(rule.pattern for rule in parse_rules(text, "site.yaml"))


def test_a_job_judges_by_its_rules_and_one_without_by_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD)
    record = "NVRM: Xid (PCI:0000:1b:00): 13, pid=99, name=python, Graphics Exception"
    use_rules_of(path)
    assert explain_exception("RuntimeError: leaf7 port flap").error == "link flapping"
    assert [(e.finding.severity, e.finding.blame) for e in KernelLog().feed(record)] == [
        (Severity.SEV1, Blame.NODE)
    ]
    use_rules_of(tmp_path / "none.yaml")
    assert explain_exception("RuntimeError: leaf7 port flap").error == "exception in a rank"
    assert [e.finding.severity for e in KernelLog().feed(record)] == [Severity.SEV2]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tables_own_rows_are_written_as_a_sites_are(family: str) -> None:
    import unicron_hpc.detect

    file = Path(unicron_hpc.detect.__file__).parent / "rows" / f"{family}.yaml"
    assert list(read_rules(file)) == dict(families())[family]

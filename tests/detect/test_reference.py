"""docs/errors.md says what the table says, and its example of site rules is one."""

from __future__ import annotations

import re
from pathlib import Path

from unicron_hpc.detect.reference import reference
from unicron_hpc.detect.site_rules import parse_rules
from unicron_hpc.detect.table import default_table

_DOCS = Path(__file__).parents[2] / "docs" / "errors.md"


def test_the_page_is_up_to_date() -> None:
    assert _DOCS.read_text("utf-8") == reference(), (
        "run: python -m unicron_hpc.detect.reference > docs/errors.md"
    )


def test_the_pages_rules_are_rules_and_one_takes_the_place_of_a_row() -> None:
    block = re.search(r"^```yaml rules\n(.*?)^```$", reference(), re.MULTILINE | re.DOTALL)
    assert block is not None
    rules = parse_rules(block[1], "docs/errors.md")
    table = default_table().with_rules(rules)
    assert len(rules) == 2
    assert len(table.rows) == len(default_table().rows) + 1
    found = table.find("NVRM: Xid (PCI:0000:1b:00): 13, pid=99, name=python, Graphics SM Warp Exception")
    assert found is not None
    assert found.error == "worn-out GPU"

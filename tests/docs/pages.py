"""The documentation's pages, taken apart into code blocks, commands and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"\$\([^)]*\)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page, its line, what it is (`sh`, `sh run`, `yaml`, ...) and its text."""

    page: str
    line: int
    info: str
    text: str

    @property
    def id(self) -> str:
        """Its name in test reports."""
        return f"{self.page}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """Each line of a shell block as words; without comments, and with a folder for a command's output."""
        for line in _OUTPUT.sub("/shared", self.text.replace("\\\n", " ")).splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def blocks(info: str) -> list[Block]:
    """Return all blocks of one kind."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match["info"].strip() == info:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(str(page.relative_to(REPOSITORY)), line, info, match["text"]))
    return found


def links() -> list[tuple[Path, str]]:
    """Return (page, target) of every link to a file of the repository."""
    return [
        (page, target)
        for page in PAGES
        for target in _LINK.findall(_FENCE.sub("", page.read_text()))
        if "://" not in target
    ]

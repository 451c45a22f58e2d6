"""Text for a terminal: what ranks, kernels and other users wrote may hold a terminal's control sequences.

Or halves of characters, which no encoding takes: Python keeps bytes of paths that are no text as such.
"""

from __future__ import annotations

import re

_UNFIT = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]+")


def plain(text: str) -> str:
    """The text with a space for what a terminal must not get; its lines stay."""
    return _UNFIT.sub(" ", text)

"""Text for a terminal: what ranks, kernels and other users wrote may hold a terminal's control sequences."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]+")


def plain(text: str) -> str:
    """The text with a space for control characters; its lines stay."""
    return _CONTROL.sub(" ", text)

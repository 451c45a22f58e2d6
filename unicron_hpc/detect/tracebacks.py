"""Python's tracebacks in a log, each read as one error: its last line, and of a chain the root."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_HEAD = "Traceback (most recent call last):"
#: `Class: text`, or the class alone.
_LAST = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:: |:?$)")
_CAUSED = "The above exception was the direct cause of the following exception:"
_HANDLING = "During handling of the above exception, another exception occurred:"
#: Lines that belong to the text of an exception, although they look like others.
_MORE = re.compile(
    r"(?:CUDA kernel errors might|For debugging consider|Compile with `?TORCH_USE|Device-side assertion"
    r"|Last error:|nccl\w+Error:|ncclInvalid\w+:|Exception raised from|frame #\d+|C\+\+ CapturedTraceback"
    r"|NCCL version|Original Traceback|\s|[|+])"
)
_FRAME = re.compile(r"\s*(?:frame )?#\d+")
#: A group's lines are drawn with a frame around them.
_DRAWN = re.compile(r"^\s+\| ?")
_FRAME_OF_GROUP = re.compile(r"\s*\+[-+]+")
#: Lines of others between the lines of one traceback, and lines of one exception's text.
_PATIENCE = 400
_LONGEST_TEXT = 24
_LONGEST_CHAIN = 16


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as a log shows it.

    Attributes
    ----------
    text
        `Class: text`, with the lines of the text that follow.
    number, line
        The line of `Class: text` in its file, with what stands before it.
    handled
        The exception before it in the chain was being handled; false where it caused this one.
    """

    text: str
    number: int
    line: str
    handled: bool = False


@dataclass(slots=True)
class Traceback:
    """Reads the lines of one stream (a rank's, or a file's) and puts its tracebacks together."""

    _chain: list[Raised] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _number: int = 0
    _line: str = ""
    _in_body: bool = False
    _handled: bool = False
    _idle: int = 0

    @property
    def open(self) -> bool:
        """Whether a traceback has begun and its end was not seen."""
        return self._in_body or bool(self._text) or bool(self._chain)

    def feed(self, text: str, number: int, line: str = "") -> tuple[bool, list[Raised]]:
        """Take a line.

        Parameters
        ----------
        text, number, line
            The line without its head, its number in the file, and all of it.

        Returns
        -------
        bool
            Whether the line belongs to a traceback.
        list of Raised
            A chain that has ended, the first exception first; mostly empty.
        """
        if _HEAD in text:
            ended = [] if self._linked() else self.finish()
            self._close_text()
            self._in_body, self._idle = True, 0
            return True, ended
        if self._in_body:
            return self._body(text, number, line or text), []
        if self._text or self._chain:
            return self._after(text)
        return False, []

    def finish(self) -> list[Raised]:
        """What is there at the end of the stream."""
        self._close_text()
        chain, self._chain = self._chain, []
        self._in_body = self._handled = False
        return chain

    def _body(self, text: str, number: int, line: str) -> bool:
        plain = _DRAWN.sub("", text)
        if not plain.strip() or plain[:1].isspace() or plain.startswith("+-"):
            return True
        if _LAST.match(plain):
            self._text, self._number, self._line, self._in_body = [plain], number, line, False
            return True
        self._idle += 1
        if self._idle > _PATIENCE:
            self._in_body = False
        return False

    def _after(self, text: str) -> tuple[bool, list[Raised]]:
        stripped = text.strip()
        if stripped in {_CAUSED, _HANDLING}:
            self._close_text()
            self._handled = stripped == _HANDLING
            return True, []
        if not stripped:
            return True, []
        if self._text and (_MORE.match(text) or self._text[-1].endswith("Last error:")):
            if len(self._text) < _LONGEST_TEXT and not (_FRAME.match(text) or _FRAME_OF_GROUP.match(text)):
                self._text.append(text)
            return True, []
        return False, self.finish()

    def _linked(self) -> bool:
        """Whether the traceback that begins belongs to a chain."""
        return bool(self._chain) and not self._text

    def _close_text(self) -> None:
        if self._text:
            self._chain.append(Raised("\n".join(self._text), self._number, self._line, self._handled))
            del self._chain[_LONGEST_CHAIN:]
            self._text, self._handled = [], False

"""The lines of a log's end that tell of an error: what a process wrote just before it died."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last)"
#: What stands between the exceptions of a chain.
_BETWEEN = ("During handling of the above exception", "The above exception was the direct cause")
#: torch's and srun's marks of who wrote a line.
_PREFIX = re.compile(r"^\s*(?:\[(?:default|rank)\d+\]:\s?|\d+:\s)")
_MODULES = re.compile(r"^(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_]\w*(?::|$))")
#: Lines outside a traceback by which C++, the C library, the interpreter and glog tell of the end.
_FATAL = re.compile(
    r"^terminate called|^\s*what\(\):|^Fatal Python error|Assertion .* failed|^F\d{4} |^\[?E\d{4} |^\[E\d"
    r"|^(free|malloc|realloc|corrupted|double free)\b.*|\*\*\* (stack smashing|buffer overflow)"
    r"|^(CUDA|NCCL|cuDNN|cuBLAS) (error|failure)|\bNCCL WARN\b|^Bus error|^\w*Error: "
)


def error_lines(text: str) -> list[str]:
    """The lines that name an error, oldest first.

    Of a Python traceback that is the exception's own line, without the modules of its class.

    Parameters
    ----------
    text
        The end of a log; a first line that is cut in the middle does no harm.
    """
    found: list[str] = []
    inside = False
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw)
        if line.startswith(_TRACEBACK):
            inside = True
        elif inside:
            if line[:1].isspace() or not line or line.startswith(_BETWEEN):
                continue
            inside = False
            found.append(_MODULES.sub("", line.strip()))
        elif _FATAL.search(line):
            found.append(line.strip())
    return found

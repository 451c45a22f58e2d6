"""What the lines of one log mean: any training's, ours or not, and any node's kernel log."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass, field, replace

import msgspec

from unicron_hpc.detect.exceptions import UNKNOWN_EXCEPTION
from unicron_hpc.detect.exits import explain_exit
from unicron_hpc.detect.kernel_log import KernelLog, numbers_in
from unicron_hpc.detect.log_places import Place, exit_code_in, host_in, peer_in, sequence_in, tasks_in
from unicron_hpc.detect.prefixes import Line, take_apart, without_colours
from unicron_hpc.detect.rule import Rule
from unicron_hpc.detect.table import EXCEPTION_NAME, Table, table_in_use
from unicron_hpc.detect.torchrun_report import TorchrunReport
from unicron_hpc.detect.tracebacks import Raised, Traceback

#: Different findings of one file that are kept; a log that has more repeats itself in other words.
MOST_FINDINGS = 5000
#: Longest text of a finding, in characters.
_LONGEST = 2000
#: Tracebacks that are read at the same time, and lines after which one is given up.
_MOST_STREAMS, _SILENCE = 256, 400
_HEAD = "Traceback (most"
#: What tells of an exception that the interpreter, the logging module or torch's compiler went on after.
_IGNORED = re.compile(
    r"Exception ignored (?:in|on)\b|--- Logging error ---|(?:torch\._dynamo\S* \[\w+\] )?WON'T CONVERT\b"
)
#: Lines from there to the head of its traceback.
_TO_HEAD = 3
#: Lines with one of these are worth a closer look, whatever the rows say.
_TELLING = (
    b"Traceback (most", b"NVRM", b"Exception", b"Error", b"error occurred",
    b"--- Logging error", b"WON'T CONVERT",
)  # fmt: skip
#: Lines back to look for a time, when a line has none.
_BACK = 200

#: An exception's line outside a traceback, as the last lines of a log often are.
#: Lustre's kernel modules begin their lines with what looks like one.
_EXCEPTION = re.compile(
    rf"(?!L(?:ustre|Net)Error:)(?:[a-z_][\w.]*\.)?{EXCEPTION_NAME.pattern}(?::|$)", re.ASCII
)
#: What Ray and Python's loggers put before an exception that stands alone, and how far it may be indented.
_BEFORE = re.compile(
    r"(?:\((?:[^()]{1,80} )?pid=\d+[^()]{0,60}\) ?|\[?[\w./-]{1,200}\.py:\d{1,6}(?::[\w<>.]{1,80})?\]?:? ?"
    r"|\[?(?:ERROR|CRITICAL|FATAL)\]?:? ?(?:\d\d-\d\d \d\d:\d\d:\d\d ?)?)*\s{0,8}",
    re.ASCII,
)
#: How a program tells of the exception that ended its work, in a sentence of its own.
_TOLD = re.compile(
    r"\b(?:error|exception) (?:occurred |raised |caught )?(?:during|while|in) (?:the )?"
    r"(?:\w+ ){0,2}(?:(?:pre)?train(?:ing)?|fine-?tuning|main|run|epoch)\b[^:]{0,40}: (?=\S)"
    r"(?!.*(?:retry|skipp|ignor|continu))",
    re.ASCII | re.IGNORECASE,
)
#: NCCL tells of normal ends in the words of errors; frames of a C++ stack name functions, not errors; urllib3
#: and the Hugging Face hub try again or do without, as do TensorFlow without a library, torch with another
#: plan of cuDNN, and its autotuner with another kernel.
_CHATTER = re.compile(
    r"(?:^| )NCCL (?:INFO|TRACE) |^\s*frame #\d+: |\bRetrying \(Retry\(total="
    r"|Could not load dynamic library '|thrown while requesting (?:HEAD|GET) |Couldn't connect to the Hub: "
    r"|Warning: Plan failed with an? |\bfor benchmark choice "
)

#: The row whose line begins a report of several.
_TORCHRUN = "torchrun-root-cause"

_UNKNOWN = Rule(
    name="exception-other",
    error=UNKNOWN_EXCEPTION.error,
    severity="SEV2",
    blame=UNKNOWN_EXCEPTION.blame,
    meaning="An exception that no rule explains.",
    advice="Read its traceback; a site rule can give it a severity.",
    source="Python",
    vague=True,
)


class LogFinding(msgspec.Struct, frozen=True):
    """One error in a log.

    Attributes
    ----------
    file, line_number
        Where it stands first.
    line, text
        The line as it stands there, and the message: without what stands before it, with all its lines.
    rule
        The row of the table that explains it.
    time
        Unix time; of the nearest line before it that has one. None where there is none.
    rank, host, pid, xid, pci
        Where they are known.
    peer
        Whom it lost or waited for.
    tasks, exit_code
        What srun tells of tasks that ended.
    sequence, group
        Number of the collective that timed out, and its process group.
    count, last_line_number
        How often it came, and where the last one stands.
    """

    file: str
    line_number: int
    line: str
    text: str
    rule: Rule
    time: float | None = None
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    xid: int | None = None
    pci: str | None = None
    peer: str | None = None
    tasks: tuple[int, ...] = ()
    exit_code: int | None = None
    sequence: int | None = None
    group: str | None = None
    count: int = 1
    last_line_number: int = 0


@dataclass(slots=True)
class _Stream:
    """A traceback that is being read, and the line with which it began.

    Attributes
    ----------
    last
        Number of the line that was fed last.
    begun
        Whether a line after the head has come.
    ignored
        Nothing failed: whoever printed it went on.
    """

    traceback: Traceback
    head: Line
    last: int
    begun: bool = False
    ignored: bool = False


@dataclass(slots=True)
class LogScan:
    """Reads one log line by line.

    Parameters
    ----------
    file
        Its name, for the findings.
    place
        Rank and host whose log it is, as far as its name tells.
    year
        Year of times that are written without one, as of the log's last line.
    latest
        Unix time by which all was written: a later one, written without a year, is of the year before.
    table
        The rows to go by; those of this process's job when left out.
    """

    file: str
    place: Place = field(default_factory=Place)
    year: int = 1970
    latest: float = math.inf
    table: Table = field(default_factory=table_in_use)
    left_out: int = 0
    _found: dict[tuple[object, ...], LogFinding] = field(default_factory=dict)
    #: By rank, and by what a launcher that is not known puts before every line.
    _tracebacks: dict[tuple[int | None, str], _Stream] = field(default_factory=dict)
    #: Line at which a stream said that it goes on after the exception that follows.
    _ignored: dict[tuple[int | None, str], int] = field(default_factory=dict)
    _kernel: KernelLog = field(init=False)
    _recent: deque[bytes] = field(default_factory=lambda: deque(maxlen=_BACK))
    _report: TorchrunReport | None = None
    _stamp: float | None = None

    def __post_init__(self) -> None:
        self._kernel = KernelLog(self.table)

    def feed(self, raw: bytes, number: int) -> None:
        """Take a line without its end; `number` counts from 1."""
        if b"\x1b" in raw:
            raw = without_colours(raw.decode("utf-8", "replace")).encode()
        if (
            not self._tracebacks
            and self._report is None
            and not self.table.may_fit(raw)
            and not any(word in raw for word in _TELLING)
        ):
            self._recent.append(raw)
            return
        whole = raw.decode("utf-8", "replace").rstrip()
        line = self._take_apart(whole)
        in_report = self._report is not None and self._report.feed(line.text, number)
        if self._report is not None and self._report.over:
            self._reported(line)
        if not in_report and not self._traceback(whole, line, number) and not _CHATTER.search(line.text):
            self._message(whole, line, number)
        self._recent.append(raw)

    def finish(self) -> list[LogFinding]:
        """All findings, in the order in which they stand in the file."""
        for stream in self._tracebacks.values():
            self._raised(stream.traceback.finish(), stream)
        self._reported(Line(""))
        self._tracebacks.clear()
        return sorted(self._found.values(), key=lambda finding: finding.line_number)

    def _take_apart(self, text: str) -> Line:
        line = take_apart(text, self.year)
        return line if line.time is None or line.time <= self.latest else take_apart(text, self.year - 1)

    def _message(self, whole: str, line: Line, number: int) -> None:
        """A line that stands for itself, or ends a record of the kernel."""
        text = self._kernel.assemble(line.text) if "NVRM" in line.text else line.text
        shown = whole if text is line.text else text
        text, raised = _alone(text)
        row = self.table.find(text, exception=raised) or (_UNKNOWN if raised else None)
        if row is None:
            return
        if row.name == _TORCHRUN:
            self._report = TorchrunReport(number, whole)
            return
        self._add(row, shown, text, line, number)

    def _reported(self, line: Line) -> None:
        """torchrun has named the rank that failed first."""
        report, self._report = self._report, None
        row = None if report is None else self.table.find(report.title)
        if report is None or row is None:
            return
        if report.status is not None:
            row = msgspec.structs.replace(row, error=explain_exit(report.status).error)
        named = Line("", line.time, report.rank if line.rank is None else line.rank, report.host)
        if chain := report.raised():
            raised, cause = self._root(chain)
            if not cause.collateral and not cause.vague:
                self._add(cause, raised.line.strip(), raised.text, named, raised.number)
                return
        self._add(row, report.title, report.text, named, report.number)

    def _traceback(self, whole: str, line: Line, number: int) -> bool:
        """Whether the line belongs to a traceback."""
        self._give_up(number)
        if found := _IGNORED.search(line.text):
            self._ignored = {k: n for k, n in self._ignored.items() if number - n <= _TO_HEAD}
            self._ignored[line.rank, line.text[: found.start()]] = number
        for rank, before in list(self._tracebacks):
            if before and rank == line.rank and line.text.startswith(before):
                if not self._tracebacks[rank, before].begun:
                    self._tracebacks.pop((rank, ""), None)  # opened by the same head
                return self._feed((rank, before), line.text[len(before) :], whole, line, number)
        begins = line.text.find(_HEAD)
        before = line.text[: max(begins, 0)]
        if before.strip() and len(self._tracebacks) < _MOST_STREAMS:
            # It may be what stands before all lines of this stream, or the rest of a line that was not ended.
            self._feed((line.rank, before), line.text[begins:], whole, line, number)
        if begins < 0 and (line.rank, "") not in self._tracebacks:
            return False
        return self._feed((line.rank, ""), line.text, whole, line, number)

    def _feed(self, key: tuple[int | None, str], text: str, whole: str, line: Line, number: int) -> bool:
        stream = self._tracebacks.get(key)
        if stream is None:
            stream = self._begin(key, line, number)
        else:
            stream.begun, stream.last = True, number
        belongs, chain = stream.traceback.feed(text, number, whole)
        if chain:
            self._raised(chain, stream)
            if stream.traceback.open:  # another one has begun, with this line
                self._begin(key, line, number).traceback = stream.traceback
        if not stream.traceback.open:
            del self._tracebacks[key]
        return belongs

    def _begin(self, key: tuple[int | None, str], line: Line, number: int) -> _Stream:
        ignored = number - self._ignored.pop(key, -_TO_HEAD - 1) <= _TO_HEAD
        # The time at which it was raised: the lines that follow may end much later.
        head = replace(line, time=self._time(line))
        stream = self._tracebacks[key] = _Stream(Traceback(), head, number, ignored=ignored)
        return stream

    def _give_up(self, number: int) -> None:
        """End the streams of unknown launchers that say nothing any more."""
        for key, stream in list(self._tracebacks.items()):
            if key[1] and number - stream.last > _SILENCE:
                self._raised(stream.traceback.finish(), stream)
                del self._tracebacks[key]

    def _raised(self, chain: list[Raised], stream: _Stream) -> None:
        """One finding for a chain of exceptions."""
        if chain and not stream.ignored:
            raised, row = self._root(chain)
            self._add(row, raised.line, raised.text, stream.head, raised.number)

    def _root(self, chain: list[Raised]) -> tuple[Raised, Rule]:
        """The root of a chain, or what came while that was handled, and what it means."""
        explained = [(raised, self._explain(raised)) for raised in chain]
        raised, row = explained[0]
        if row.collateral or row.vague:
            # What happened while a mere consequence was handled may be the cause; what it caused is not.
            later = [(r, w) for r, w in explained[1:] if r.handled and not w.collateral and not w.vague]
            return later[0] if later else (raised, row)
        return raised, row

    def _explain(self, raised: Raised) -> Rule:
        return self.table.find(raised.text, exception=True) or _UNKNOWN

    def _add(self, row: Rule, whole: str, text: str, line: Line, number: int) -> None:
        tasks = tasks_in(text)
        rank = line.rank if line.rank is not None else (tasks[0] if len(tasks) == 1 else None)
        host = host_in(text) or line.host or self.place.host
        xid, pci, pid = numbers_in(text)
        if rank is None and not tasks:
            rank = self.place.rank
        shape = re.sub(r"\d+", "0", text[:80]) if row is _UNKNOWN or row.scope == "exception" else ""
        key = (row.name, rank, host, xid, pci, tasks, shape)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = msgspec.structs.replace(
                known, count=known.count + 1, last_line_number=max(number, known.last_line_number)
            )
            return
        if len(self._found) >= MOST_FINDINGS:
            self.left_out += 1
            return
        sequence, group = sequence_in(text)
        self._found[key] = LogFinding(
            self.file, number, whole[:_LONGEST], text[:_LONGEST], row, self._time(line), rank, host or None,
            line.pid if pid is None else pid, xid, pci, peer_in(text), tasks, exit_code_in(text),
            sequence, group, 1, number,
        )  # fmt: skip

    def _time(self, line: Line) -> float | None:
        """The line's time, or that of the nearest line before it which has one."""
        time = line.time
        while time is None and self._recent:
            time = self._take_apart(self._recent.pop()[:200].decode("utf-8", "replace")).time
        # These lines were looked at; the next finding needs those after them only.
        self._recent.clear()
        if time is not None:
            self._stamp = time
        return self._stamp


def _alone(text: str) -> tuple[str, bool]:
    """The exception that a line outside a traceback tells of; else the line, and false."""
    if _EXCEPTION.match(text):
        return text, True
    if (before := _BEFORE.match(text)) and _EXCEPTION.match(text, before.end()):
        return text[before.end() :], True
    if told := _TOLD.search(text):
        return text[told.end() :], True
    return text, False

"""What stands before a message on a line of a log: time, host, rank, process."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from dataclasses import dataclass

_FLAGS = re.ASCII | re.IGNORECASE

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")

_MONTHS = {name.lower(): k for k, name in enumerate(calendar.month_abbr) if name}
_MONTH = "|".join(_MONTHS)
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?"

#: Ways to write a time, each with what may stand around it.
_TIMES = tuple(
    re.compile(pattern, _FLAGS)
    for pattern in (
        # 2025-03-03T10:00:00.123+01:00, [2025-03-03 10:00:00,123], 2025/03/03 10:00:00
        rf"\[?(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]{_CLOCK}"
        r"\s?(?P<zone>Z\b|UTC\b|[+-]\d\d:?\d\d\b)?\]?:? ?",
        # [Mon Mar  3 10:00:00 2025], as dmesg -T writes it
        rf"\[?(?:mon|tue|wed|thu|fri|sat|sun),? (?P<monthname>{_MONTH}) +(?P<day>\d\d?) {_CLOCK}"
        r" (?P<year>\d{4})\]?:? ?",
        # Mar  3 10:00:00, as syslog writes it
        rf"(?P<monthname>{_MONTH}) +(?P<day>\d\d?) {_CLOCK}\b:? ?",
        # I0303 10:00:00.123456 and [E303 10:00:00.123456789, as glog and torch write it
        rf"\[?[IWEFVD](?P<month>\d\d?)(?P<day>\d\d) {_CLOCK} ?",
    )
)

_UPTIME = re.compile(r"\[ *\d+\.\d{2,6}\](?:\[[ TC]*\d+\])? ?", _FLAGS)
#: /dev/kmsg: `6,1234,5678901,-;`; dmesg -x: `kern  :warn  : `; a raw priority: `<4>`; of a
#: container's log: `stderr F `.
_KERNEL_HEAD = re.compile(
    r"\d+,\d+,\d+,[^;\s]*;|<\d{1,3}>|std(?:out|err) [FP](?: |$)"
    r"|(?:kern|user|daemon|syslog)\s*:(?:emerg|alert|crit|err|warn|notice|info|debug)\s*: ?",
    _FLAGS,
)
_SYSLOG_HOST = re.compile(r"(?P<host>[\w.-]+) (?:kernel|[\w./-]+\[\d+\]): ?", _FLAGS)
#: `[rank3]:` and `[default3]:` of torchrun, `3: ` of srun --label, `[1,3]<stderr>:` of mpirun,
#: `[3]<stderr>:` of Horovod.
_RANK = re.compile(
    r"\[(?:rank|default) ?(?P<tag>\d+)\]:? ?|rank[ =:]?(?P<word>\d+)[\]:|]+ ?"
    r"| {0,3}(?P<label>\d{1,6}): (?!\d)|\[(?:\d+,)?(?P<mpi>\d+)\]<std(?:out|err)>: ?",
    _FLAGS,
)
_RANK_INSIDE = re.compile(
    r"\[(?:PG [^\]]{1,80}?)?Rank (?P<rank>\d+)\]|\bon rank (?P<on>\d+)\b|\(rank (?P<of>\d+)\)$"
    r"|\bprocess rank (?P<mpi>\d+) with PID",
    _FLAGS,
)
_NCCL = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[\d+\] ", _FLAGS)
_PDSH_HOST = re.compile(r"(?P<host>[\w.-]+): (?=\[ *\d+\.\d|NVRM|kernel: |\[(?:rank|default)\d+\]:)", _FLAGS)
_LEVELS = "(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_LEVEL = re.compile(rf"[-|]? ?(?:\[{_LEVELS}\]:? ?|{_LEVELS}(?::(?:[\w.]{{1,60}}:(?! ))?| [-|]) ?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Line:
    """A line taken apart.

    Attributes
    ----------
    text
        The message without what stands before it.
    time
        Unix time; a time without a zone counts as UTC. None where the line has none.
    rank, host, pid
        Where they are written.
    """

    text: str
    time: float | None = None
    rank: int | None = None
    host: str = ""
    pid: int | None = None


def without_colours(text: str) -> str:
    """The text without a terminal's control sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def take_apart(text: str, year: int = 1970) -> Line:
    """Split a line into what stands before its message, and the message.

    Parameters
    ----------
    text
        One line, without its end.
    year
        The year of times that are written without one.
    """
    rest = without_colours(text).rstrip()
    time: float | None = None
    rank: int | None = None
    host, pid = "", None
    # Launchers and loggers put their heads before each other's, in any order. Each takes one space behind it
    # at most: the indentation that follows is the message's.
    for _ in range(8):
        before = rest
        if rank is None and (match := _RANK.match(rest)):
            rank = int(next(found for found in match.groups() if found))
            rest = rest[match.end() :]
        if time is None:
            for pattern in _TIMES:
                if match := pattern.match(rest):
                    time = _unix(match, year)
                    rest = rest[match.end() :]
                    if not host and (after := _SYSLOG_HOST.match(rest)):
                        host = after["host"]
                        rest = rest[after.end() :]
                    break
        if not host and (match := _PDSH_HOST.match(rest)):
            host, rest = match["host"], rest[match.end() :]
        if match := _KERNEL_HEAD.match(rest) or _UPTIME.match(rest) or _LEVEL.match(rest):
            rest = rest[match.end() :]
        if pid is None and (match := _NCCL.match(rest)):
            host, pid = host or match["host"], int(match["pid"])
            rest = rest[match.end() :]
        if rest == before:
            break
    if rank is None and (match := _RANK_INSIDE.search(text[:400])):
        rank = int(next(found for found in match.groups() if found))
    return Line(rest, time, rank, host, pid)


def _unix(match: re.Match[str], year: int) -> float | None:
    """Unix time of a match of `_TIMES`; None for a day that no calendar has."""
    found = match.groupdict()
    month = int(found["month"]) if found.get("month") else _MONTHS[str(found["monthname"]).lower()]
    zone = dt.UTC
    if written := found.get("zone"):
        digits = written.replace(":", "")
        if digits[0] in "+-":
            minutes = int(digits[1:3]) * 60 + int(digits[3:5])
            if minutes >= 24 * 60:
                return None
            offset = dt.timedelta(minutes=minutes if digits[0] == "+" else -minutes)
            zone = dt.timezone(offset)
    try:
        moment = dt.datetime(
            int(found.get("year") or year), month, int(found["day"]),
            int(found["hour"]), int(found["minute"]), int(found["second"]), tzinfo=zone,
        )  # fmt: skip
        return moment.timestamp() + float(f"0.{found['part'] or 0}")
    except (ValueError, OverflowError):
        return None

"""Ranks, hosts and numbers in the names and lines of logs."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Most tasks that a list such as `0-3,7` is spelled out for.
_MOST_TASKS = 100_000

_RANK_IN_NAME = re.compile(
    r"(?:^|[^a-z])(?:global_?)?rank[-_ .=]?(?P<rank>\d+)(?!\d|-\d+\.log)", re.IGNORECASE
)
_TORCHRUN = re.compile(r"/(?P<rank>\d+)/std(?:err|out)(?:\.log)?$")
_OURS = re.compile(r"rank-(?P<host>[\w.-]+)-\d+\.log")
_HOST_IN_NAME = re.compile(
    r"(?:^|/)(?:dmesg|kern|kernel|agent|zygote|syslog|messages|journal)[-_.](?P<host>[A-Za-z][\w-]*)\.",
    re.IGNORECASE,
)

_SRUN = re.compile(r"srun: error: (?P<host>[\w.-]+) ?: tasks? (?P<tasks>[\d,-]+): ", re.ASCII)
_EXIT_CODE = re.compile(r"\bExited with exit code (?P<code>\d+)|\(exitcode: (?P<other>-?\d+)\)", re.ASCII)
_HOST = re.compile(
    r"\*\*\* .{1,80}? ON (?P<step>[\w.-]+) (?:CANCELLED|FAILED|AT|UNCORRECTABLE)"
    r"|STEPD TERMINATED ON (?P<stepd>\S+)|Node failure on (?P<node>[\w.-]+)"
    r"|\bnode (?P<lost>[\w.-]+) is lost: |incident \d+: .{1,80}? on (?P<agent>[\w.-]+) \((?:rank |node\))"
    r"|failed on node (?P<launch>[\w.-]+)|on node (?P<mpi>[\w.-]+) exited on signal"
    r"|srun: error: (?P<srun>[\w.-]+) ?: tasks? ",
    re.ASCII,
)
_PEER = re.compile(
    r"(?:from|to|by|with)(?: remote)? (?:peer|address|host) \[?(?P<peer>[\w.:-]+?)\]?(?:<|\]|:\d+\b|[\s,]|$)"
    r"|connect(?:ion)? to \[?(?P<to>[\w.-]+)\]?[:|,]|server not responding|nfs: server (?P<server>\S+)",
    re.ASCII | re.IGNORECASE,
)
_SEQUENCE = re.compile(r"\bSeqNum=(?P<sequence>\d+)", re.ASCII)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\d+)|\bPG (?:ID )?(?P<other>\d+)\b", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """Whose log it is."""

    rank: int | None = None
    host: str = ""


def place_in_name(name: str) -> Place:
    """Rank and host that a log's name tells: `rank-3.log`, `attempt_0/3/stderr.log`, `dmesg-n1.txt`."""
    path = name.replace("\\", "/").removesuffix(".gz")
    base = path.rpartition("/")[2]
    if (ours := _OURS.fullmatch(base)) and not ours["host"].isdecimal():
        return Place(host=ours["host"])
    # The file's own name before its folders'.
    rank = _RANK_IN_NAME.search(base) or _TORCHRUN.search(path) or _RANK_IN_NAME.search(path)
    host = _HOST_IN_NAME.search(path)
    return Place(_int(rank["rank"]) if rank else None, host["host"] if host else "")


def tasks_in(text: str) -> tuple[int, ...]:
    """The tasks that srun names (`tasks 0-3,7`)."""
    found = _SRUN.search(text)
    tasks: list[int] = []
    for part in found["tasks"].split(",") if found else ():
        first, _, last = part.partition("-")
        start = _int(first)
        end = _int(last) if last else start
        if start is None or end is None or end - start + len(tasks) > _MOST_TASKS:
            return ()
        tasks.extend(range(start, end + 1))
    return tuple(tasks)


def exit_code_in(text: str) -> int | None:
    """The exit code that srun or torchrun tells; minus the signal's number with torchrun."""
    found = _EXIT_CODE.search(text)
    return _int(found["code"] or found["other"]) if found else None


def host_in(text: str) -> str:
    """The node that the message itself is about."""
    found = _HOST.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


def peer_in(text: str) -> str | None:
    """Name or address of whom a connection was lost to."""
    found = _PEER.search(text)
    return next((group for group in found.groups() if group), None) if found else None


def sequence_in(text: str) -> tuple[int | None, str | None]:
    """Number of a collective and its process group."""
    sequence, group = _SEQUENCE.search(text), _GROUP.search(text)
    return (
        _int(sequence["sequence"]) if sequence else None,
        (group["group"] or group["other"]) if group else None,
    )


def _int(digits: str) -> int | None:
    """The number; None for one that is too long to be meant."""
    return int(digits) if 0 < len(digits) <= 18 and digits.lstrip("-").isdecimal() else None

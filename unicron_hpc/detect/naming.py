"""Whom the words of a complaint name: ranks that were missed at a barrier, or that did something else."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from unicron_hpc.detect.reports import Report

#: `[Rank 0]: Ranks 3, 5 failed to pass monitoredBarrier in 300000 ms`, and what torch's desync report says.
_MISSED = (
    re.compile(r"\bRanks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier", re.ASCII),
    re.compile(r"ranks that caused the desync are:[\s-]*\[(?P<ranks>\d+(?:, ?\d+)*)\]", re.ASCII),
)
#: `Rank 0 is running collective: ..., but Rank 3 is running collective: ...`
_DIFFERS = re.compile(r", but Rank (?P<rank>\d+) is running", re.ASCII)
_OPERATION = re.compile(r"\bOpType=(?P<operation>\w+)(?:, NumelIn=(?P<numel>\d+))?", re.ASCII)
#: Collectives to which all ranks give equally much.
_EQUAL = frozenset({"ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
#: What two ranks do with each other, and what is rightly called by other names on the other side.
_PAIRWISE = frozenset({"SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN"})
#: Digits of a rank that can be meant.
_LONGEST = 9


def operation_in(text: str) -> str:
    """The collective that a watchdog's line is about, and its size where that is the same on all ranks.

    Empty for none, and for what only a pair of ranks runs.
    """
    found = _OPERATION.search(text)
    if found is None or found["operation"] in _PAIRWISE:
        return ""
    size = found["numel"] if found["operation"] in _EQUAL else None
    return f"{found['operation']}({size or ''})"


def missed(reports: Iterable[Report]) -> tuple[int, ...]:
    """Ranks that others name as those who did not come."""
    votes: Counter[int] = Counter()
    for report in reports:
        named = next((found["ranks"] for words in _MISSED if (found := words.search(report.detail))), "")
        ranks = {int(digits) for digits in named.split(",") if digits and len(digits) <= _LONGEST}
        votes.update(ranks)
    return _most(votes)


def differing(reports: Sequence[Report]) -> tuple[int, ...]:
    """Ranks that run another collective than the others, by the words of those, or by what each one ran."""
    votes: Counter[int] = Counter()
    for report in reports:
        if (found := _DIFFERS.search(report.detail)) and len(found["rank"]) <= _LONGEST:
            votes[int(found["rank"])] += 1
    if not votes:
        return _ran_another(reports)
    # Of two who name each other nobody knows who is right.
    return _most(votes) if len(votes) == 1 or max(votes.values()) > 1 else ()


def _ran_another(reports: Iterable[Report]) -> tuple[int, ...]:
    """The few whose collective of the same number is another one."""
    ran: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for report in reports:
        # Numbers of different groups have nothing to do with each other, so the group must be known.
        if report.rank is not None and report.sequence is not None and report.group and report.operation:
            ran[report.group, report.sequence].setdefault(report.rank, report.operation)
    found: set[int] = set()
    for operations in ran.values():
        usual, count = Counter(operations.values()).most_common(1)[0]
        if count * 2 > len(operations):
            found |= {rank for rank, operation in operations.items() if operation != usual}
    return tuple(sorted(found))


def _most(votes: Counter[int]) -> tuple[int, ...]:
    most = max(votes.values(), default=0)
    return tuple(sorted(rank for rank, count in votes.items() if count == most))

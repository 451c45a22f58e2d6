"""Whom complaints accuse: those who lag, who are slow, who ended before, or who say nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

import msgspec

from unicron_hpc.detect.exits import explain_exit
from unicron_hpc.detect.naming import differing, missed
from unicron_hpc.detect.reports import Report, Sign
from unicron_hpc.detect.severity import NOT_ANSWERING, SLOW, Blame, Finding, Severity

LAGGING = Finding("rank lags behind in a collective", Severity.SEV2)
#: As the table names it.
MISMATCH = Finding("collectives do not match", Severity.PROGRAM, Blame.PROGRAM)
FINISHED = explain_exit(0)


class Accusation(msgspec.Struct, frozen=True):
    """Whom those who only complain wait for.

    Attributes
    ----------
    ranks
        The accused; empty when nobody can be named.
    finding
        What they are accused of.
    why
        A sentence.
    cause
        The report that says so; None where it is the absence of one.
    """

    ranks: tuple[int, ...] = ()
    finding: Finding = NOT_ANSWERING
    why: str = ""
    cause: Report | None = None


def accused(
    reports: Sequence[Report],
    complaints: Sequence[Report],
    groups: Iterable[Collection[int]],
    together: float,
) -> Accusation:
    """Whom the complaining ranks wait for.

    Parameters
    ----------
    reports
        All of the incident, in order of time.
    complaints
        Those of ranks that lost others or waited for them, and those of ranks that were told to end.
    groups
        Which ranks wait for each other.
    together
        Seconds within which two ends are one event.
    """
    if absent := missed(complaints):
        return Accusation(absent, NOT_ANSWERING, f"rank {_names(absent)}: did not come to a barrier")
    if lagging := _lagging(complaints):
        return Accusation(
            lagging, LAGGING, f"rank {_names(lagging)}: its collective's number lags behind the others'"
        )
    if others := differing(complaints):
        why = f"rank {_names(others)}: its collective is another than the others' of the same number"
        return Accusation(others, MISMATCH, why)
    waiting = {
        r.rank: r.time for r in reversed(complaints) if r.rank is not None and r.sign is not Sign.ENDED
    }
    slow = [r for r in reports if r.finding == SLOW and r.rank is not None and r.rank not in waiting]
    if slow and waiting:
        ranks = tuple(sorted({r.rank for r in slow if r.rank is not None}))
        finding = msgspec.structs.replace(SLOW, severity=Severity.SEV2)
        return Accusation(ranks, finding, f"rank {_names(ranks)}: was slow, and others wait", slow[0])
    if waiting and (ended := _ended_first(reports, waiting, together)):
        ranks = tuple(sorted({r.rank for r in ended if r.rank is not None}))
        why = f"rank {_names(ranks)}: ended before the others complained"
        return Accusation(ranks, ended[0].finding or NOT_ANSWERING, why, ended[0])
    return _says_nothing(reports, waiting, groups)


def _says_nothing(
    reports: Sequence[Report], waiting: Collection[int], groups: Iterable[Collection[int]]
) -> Accusation:
    """Those who share groups with the complaining ranks and were not heard of."""
    heard = {r.rank for r in reports if r.rank is not None}
    votes: Counter[int] = Counter()
    for group in groups:
        complaining = sum(rank in waiting for rank in group)
        if complaining:
            votes.update({rank: complaining for rank in group if rank not in heard})
    if not votes:
        return Accusation()
    most = max(votes.values())
    ranks = tuple(sorted(rank for rank, count in votes.items() if count == most))
    # Most of a group silent is no accusation of anybody: the network may be cut between the halves.
    if len(ranks) > len(waiting):
        return Accusation()
    why = f"rank {_names(ranks)}: said nothing while {most} of its groups' ranks complain"
    return Accusation(ranks, NOT_ANSWERING, why)


def _ended_first(reports: Sequence[Report], waiting: dict[int, float], together: float) -> list[Report]:
    """Ends of a few by themselves, before anybody complained: the others lost them, or wait for them."""
    first = min(waiting.values())
    ends = [r for r in reports if r.sign is Sign.ENDED and r.finding is not None and r.rank is not None]
    if any(r.finding is not None and (r.finding.collateral or _harmless(r.finding)) for r in ends):
        return []  # somebody wanted the end of all
    before = [r for r in ends if r.time < first]
    if not before or len({r.rank for r in before}) * 2 > len(waiting):
        return []
    # All are told to end at about the same time; then a few are only the first of them.
    last = before[-1].time
    others = any(r.time >= first and r.time - last <= together for r in ends)
    return [] if others else before


def _harmless(finding: Finding) -> bool:
    return finding.severity is Severity.INFO


def _names(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def _lagging(complaints: Iterable[Report]) -> tuple[int, ...]:
    """Ranks whose last collective is older than that of others in the same group."""
    groups: dict[str, dict[int, int]] = defaultdict(dict)
    for report in complaints:
        if report.sequence is not None and report.rank is not None:
            known = groups[report.group].get(report.rank)
            groups[report.group][report.rank] = min(
                report.sequence, report.sequence if known is None else known
            )
    found: set[int] = set()
    for numbers in groups.values():
        last = max(numbers.values())
        behind = {rank for rank, number in numbers.items() if number < last}
        # Only a minority can lag behind; otherwise the others have run ahead of what they wait for.
        if len(behind) * 2 <= len(numbers):
            found |= behind
    return tuple(sorted(found))

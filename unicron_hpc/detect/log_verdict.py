"""Findings of several logs in one order, and the first cause among them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from unicron_hpc.detect.attribution import judge
from unicron_hpc.detect.exits import KILLED
from unicron_hpc.detect.log_scan import LogFinding
from unicron_hpc.detect.naming import operation_in
from unicron_hpc.detect.reports import Report, Sign, Structure, Verdict
from unicron_hpc.detect.severity import WANTED_ENDS, Blame

_ABORTED = "crashed (SIGABRT)"
#: Seconds after a warning within which it may be why others waited: as long as collectives wait at most.
_WARNED_WITHIN = 3600.0
_WARNING = re.compile(r"\b(?:WARN|WARNING|INFO|DEBUG)\b|(?:^|\[)[WI]\d{3,4} ", re.ASCII)
#: Slurm sends SIGTERM, and SIGKILL where that did not help.
CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Story:
    """What several logs tell together.

    Attributes
    ----------
    findings
        All findings, in order of time; those of files without times in the order of the files.
    first_cause
        Index of the first cause; None where the logs hold consequences only, or nothing failed.
    consequences
        Indices of what followed from it.
    verdict
        Suspects, victims and what to do.
    """

    findings: tuple[LogFinding, ...]
    first_cause: int | None
    consequences: frozenset[int]
    verdict: Verdict


def tell(findings: Sequence[LogFinding], ranks: Collection[int] = ()) -> Story:
    """Put findings in order and find the first cause.

    Parameters
    ----------
    findings
        Of one or several files, those of a file in the order in which they stand there.
    ranks
        Whose logs were read: one that has nothing to complain of while the others wait is suspected.
    """
    times = _times(findings)
    order = sorted(range(len(findings)), key=lambda k: times[k])
    ordered = tuple(findings[k] for k in order)
    reports = _reports(ordered, [times[k] for k in order])
    structure = Structure(groups=(tuple(sorted(set(ranks))),))
    verdict = judge([report for report in reports if report is not None], structure)
    cause = None
    named = verdict.cause
    if named is not None and named.sign is not Sign.ENDED and named.finding and not named.finding.collateral:
        cause = next(k for k, report in enumerate(reports) if report and report.detail == named.detail)
    cause = _wanted_end(ordered, _fuller(ordered, cause))
    if cause is None and not verdict.suspects:
        cause = _warned(ordered)
    return Story(ordered, cause, _consequences(ordered, cause, verdict), verdict)


def _times(findings: Sequence[LogFinding]) -> list[float]:
    """Seconds since the earliest: by its own time, else by that of the one before it in the file, else 0."""
    earliest = min((f.time for f in findings if f.time is not None), default=0.0)
    before: dict[str, float] = {}
    times = []
    for finding in findings:
        time = before.get(finding.file, earliest) if finding.time is None else finding.time
        before[finding.file] = time
        # The clocks of logs are coarse: of one moment, the lines tell the order. Unix time itself
        # is too large a number to have such digits.
        times.append(time - earliest + min(finding.line_number, 10**6) * 1e-9)
    return times


def _reports(findings: Sequence[LogFinding], times: Sequence[float]) -> list[Report | None]:
    streams: dict[str, int] = {}
    before: dict[str, set[str]] = defaultdict(set)
    reports = []
    for finding, time in zip(findings, times, strict=True):
        reports.append(_report(finding, time, streams, before[finding.file]))
        if finding.rule.collateral:
            before[finding.file].add(finding.rule.error)
    return reports


def _follows(finding: LogFinding, before: set[str]) -> bool:
    """Whether an end by a signal follows from what others said before in the same log."""
    if finding.rule.error == _ABORTED and finding.rank is None:
        return bool(before)  # so a rank ends that has complained; who it is stands in the complaint
    return finding.rule.error == KILLED and CANCELLED in before


def _report(finding: LogFinding, time: float, streams: dict[str, int], before: set[str]) -> Report | None:
    rule = finding.rule
    sign = Sign.FAULT
    if rule.severity == "INFO":
        if not rule.collateral:
            return None
        sign = Sign.ENDED
    elif _follows(finding, before):
        sign = Sign.ENDED
    elif rule.error == KILLED:
        sign = Sign.DEATH
    rank = finding.rank
    if rank is None and not finding.tasks and not finding.xid and not finding.pci:
        # Who writes without a rank is somebody, too; negative numbers are nobody else's.
        rank = streams.setdefault(finding.file, -2 - len(streams))
    detail = f"{finding.file}:{finding.line_number}: {finding.line[:200]}"
    return Report(
        time,
        sign,
        rank,
        finding.host or "",
        rule.finding,
        rule.vague or _went_on(finding),
        None,
        finding.sequence,
        finding.group or "",
        detail,
        operation_in(finding.text),
    )


def _warned(findings: Sequence[LogFinding]) -> int | None:
    """The warning about the network or a file server after which others waited in vain."""
    warned = None
    for k, finding in enumerate(findings):
        if finding.time is None:
            continue
        if finding.rule.severity == "INFO" and finding.rule.blame is Blame.NETWORK and warned is None:
            warned = k
        elif finding.rule.collateral and finding.rule.severity != "INFO" and warned is not None:
            return warned if finding.time - (findings[warned].time or 0.0) <= _WARNED_WITHIN else None
    return None


def _went_on(finding: LogFinding) -> bool:
    """Whether the program itself logged its error as a mere warning."""
    message = finding.text.partition("\n")[0]
    # The level stands before the message, or is its first word where the logger is not known.
    head = finding.line.partition(message)[0] + message.partition(" ")[0]
    return finding.rule.severity == "PROGRAM" and _WARNING.search(head) is not None


def _wanted_end(findings: Sequence[LogFinding], cause: int | None) -> int | None:
    """The end that somebody wanted, if nothing before or after it names another cause."""
    ends = (k for k, finding in enumerate(findings) if finding.rule.error in WANTED_ENDS)
    end = next(ends, None)
    if end is None or (cause is not None and not findings[cause].rule.vague):
        return cause
    return end


def _fuller(findings: Sequence[LogFinding], cause: int | None) -> int | None:
    """The line of the log that tells of the same end and names the rank, where the first does not."""
    if cause is None or findings[cause].rank is not None or not findings[cause].rule.vague:
        return cause
    same = (k for k in range(cause + 1, len(findings)) if _same_end(findings[k], findings[cause]))
    return next((k for k in same if findings[k].rank is not None), cause)


def _same_end(one: LogFinding, other: LogFinding) -> bool:
    """Whether two lines of a log may tell of one process's end: both `killed`, both `crashed`."""
    kinds = {finding.rule.error.partition(" (")[0] for finding in (one, other)}
    return one.file == other.file and one.rule.vague and other.rule.vague and len(kinds) == 1


def _again(finding: LogFinding, first: LogFinding) -> bool:
    """Whether it is the same failure, told once more: of the same host or device."""
    if finding.pci and first.pci:
        # A GPU's number in the kernel's lines has a function (`.0`), in the driver's it has none.
        return finding.pci.partition(".")[0] == first.pci.partition(".")[0]
    if finding.rule.error != first.rule.error:
        return False
    if finding.host is not None and first.host is not None:
        return finding.host == first.host
    return finding.file == first.file and (first.rank is None or finding.rank in (None, first.rank))


def _consequences(findings: Sequence[LogFinding], cause: int | None, verdict: Verdict) -> frozenset[int]:
    found, collateral = set(), set(verdict.collateral)
    first = None if cause is None else findings[cause]
    complained = False
    for k, finding in enumerate(findings):
        rule = finding.rule
        if cause is None or first is None:
            # Without a cause, what ends after complaints without saying why ends because of them.
            followed = complained and rule.vague
        else:
            again = _again(finding, first)
            followed = k > cause and (rule.vague or again or finding.rank in collateral)
            followed = followed or (k < cause and _same_end(finding, first))
        complained = complained or rule.collateral
        if rule.collateral or (followed and rule.severity != "INFO"):
            found.add(k)
    return frozenset(found)

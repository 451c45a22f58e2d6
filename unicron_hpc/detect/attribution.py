"""Who is guilty when many complain: from reports to a verdict, whatever the order in which they arrive.

The rules, strongest first:

1. A report that names a cause (an ECC error, a crash, an exception of the program) goes before one that says
   only that something failed, and both before one from a rank that merely lost or waited for a peer. A rank
   that is silent while others wait for it stands between the first two.
2. Of equals the earliest is the cause; if the same rank's node reports an error of its own, that is. Others
   are suspects of their own only if the first cannot have caused them: a node's own error always, a death by
   a signal or a silence at about the same time. A rank that complained before it died is a victim.
3. Ranks that only complain accuse those who do not (`detect/accusing.py`): the one whose collective's number
   lags, who was slow, who ended by itself before, else whoever shares a group with them and says nothing.
4. A rank in a section that it announced (a checkpoint, a compilation) may be silent; so may one that is heard
   of again before anybody missed it, or that waits for a file system as several nodes do. Kills of most ranks
   well after another ended without a word are the launcher's.
5. A kill for want of memory near a SIGKILL on the same node is the cause of that death.
6. Several ranks that had to be restarted on one node accuse the node.
7. Three nodes or more that are lost at about the same time were lost to the network: none is drained. All
   ranks silent at once are nobody's fault.
8. The ranks of a lost node are suspects with it, whatever they say.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from unicron_hpc.detect.accusing import FINISHED, MISMATCH, accused
from unicron_hpc.detect.exceptions import UNKNOWN_EXCEPTION
from unicron_hpc.detect.exits import HOST_MEMORY, KILLED
from unicron_hpc.detect.memory_kills import MEMORY_WINDOW, with_memory_kills
from unicron_hpc.detect.naming import differing
from unicron_hpc.detect.reports import Action, Report, Sign, Structure, Verdict
from unicron_hpc.detect.severity import (
    LOST_CONNECTION,
    NOT_ANSWERING,
    TASK_HANG,
    WANTED_END,
    Blame,
    Finding,
    Severity,
)
from unicron_hpc.detect.silences import Excuses

#: Seconds within which two deaths or silences count as simultaneous.
TOGETHER = 0.25
#: Seconds after a first complaint or silence in which a death by a signal may still be the cause of it.
AFTERMATH = 5.0

#: As many nodes lost within so many seconds were lost together (`recovery.lost_together`, `node_timeout`).
LOST_NODES, LOST_WITHIN = 3, 2.0

REPEATED = Finding("ranks keep failing on this node", Severity.SEV1, Blame.NODE)
#: As many ranks that are silent at once, and all that there are, hang together.
_ALL = 3


def judge(reports: Sequence[Report], structure: Structure | None = None) -> Verdict:
    """Decide who is guilty.

    Parameters
    ----------
    reports
        What was heard so far of one incident, in any order; the verdict depends on the order in no way.
    structure
        The running layout, where it is known.
    """
    return _Court(sorted(set(reports), key=_order), structure or Structure()).verdict()


def _order(report: Report) -> tuple[object, ...]:
    finding = report.finding
    return (
        report.time, report.sign.value, -1 if report.rank is None else report.rank, report.node,
        () if finding is None else (finding.error, finding.severity, finding.blame, finding.collateral),
        report.vague, report.detail, -1 if report.sequence is None else report.sequence, report.group,
        -math.inf if report.arrival is None else report.arrival,
    )  # fmt: skip


class _Strength(enum.IntEnum):
    """How much a report says about the cause; the smallest counts most."""

    NAMES_CAUSE = 0
    SILENCE = 1
    VAGUE = 2
    COLLATERAL = 3


class _Court:
    """The reports of one incident, in order of time."""

    def __init__(self, reports: list[Report], structure: Structure) -> None:
        self.structure = structure
        self.nodes = {**structure.nodes, **{r.rank: r.node for r in reports if r.rank is not None and r.node}}
        self.reports = with_memory_kills(reports, self.nodes)
        self.start = min((report.time for report in reports), default=0.0)
        self.wanted = min((r.time for r in reports if r.finding == WANTED_END), default=math.inf)
        # When each rank first complained, and first was silent without having said so; reversed, so that the
        # earliest stays.
        self.complained = {r.rank: r.time for r in reversed(self.reports) if _complains(r)}
        self.killed = {r.rank for r in self.reports if _is_kill(r)}
        self.excuses = Excuses(self.reports, self.nodes, min(self.complained.values(), default=math.inf))
        self.silent = {
            r.rank: r.time
            for r in reversed(self.reports)
            if r.sign is Sign.SILENT and not self.excuses.excuse(r)
        }

    def verdict(self) -> Verdict:
        strengths = [(self._strength(report), report) for report in self.reports]
        told = [(strength, report) for strength, report in strengths if strength is not None]
        if repeated := self._repeated_node():
            return self._against_node(repeated, told)
        if not told:
            return Verdict(evidence=tuple(map(self._sentence, self.reports)))
        strength, first = min(told, key=lambda pair: _weight(*pair))
        complaints = [report for weight, report in told if weight is _Strength.COLLATERAL]
        if strength is _Strength.COLLATERAL:
            return self._without_cause(first, complaints, told)
        first = self._error_of_its_node(first, told)
        causes = [first, *self._independent(first, strength, told)]
        suspects = {r.rank for r in causes if r.rank is not None}
        if first.finding == MISMATCH:  # all who saw it say so; whom they name did it
            suspects = set(differing(self.reports)) or suspects
        lost = {r.node for r in causes if r.node and (r.rank is None or r.finding == LOST_CONNECTION)}
        suspects |= {rank for rank, node in self.nodes.items() if node in lost}
        if strength is _Strength.SILENCE and self._all_silent():
            return self._compose((), TASK_HANG, first, ["all ranks are silent at once"], told)
        if self._shared(first):
            return self._compose((), first.finding or TASK_HANG, first, [self._sentence(first)], told)
        evidence = [self._sentence(report) for report in causes]
        unknown = NOT_ANSWERING if first.sign is Sign.SILENT else UNKNOWN_EXCEPTION
        return self._compose(tuple(sorted(suspects)), first.finding or unknown, first, evidence, told, causes)

    def _without_cause(
        self, first: Report, complaints: list[Report], told: list[tuple[_Strength, Report]]
    ) -> Verdict:
        """Who is guilty when all that is said is that others are gone or keep it waiting, or an end."""
        found = accused(self.reports, complaints, self.structure.groups, TOGETHER)
        if found.ranks:
            return self._compose(found.ranks, found.finding, found.cause, [found.why], told)
        ended = {report.rank for report in complaints if report.sign is Sign.ENDED}
        if len(ended) > 1 and all(report.sign is Sign.ENDED for report in complaints):
            return self._compose((), WANTED_END, first, [], told)
        return self._compose((), first.finding or UNKNOWN_EXCEPTION, first, [], told)

    # ------------------------------------------------------------ how much a report says

    def _strength(self, report: Report) -> _Strength | None:
        """None for what is no sign of a failure."""
        finding = report.finding
        match report.sign:
            case Sign.SECTION | Sign.SECTION_OVER | Sign.ALIVE | Sign.RESTART | Sign.MEMORY_KILL:
                return None
            case Sign.ENDED:
                return None if finding == FINISHED else _Strength.COLLATERAL
            case Sign.SILENT:
                if self.excuses.excuse(report):
                    return None
                # A lost node is more than a rank that makes no progress.
                return _Strength.NAMES_CAUSE if _of_node(report) else _Strength.SILENCE
        if finding is not None and finding.collateral:
            return _Strength.COLLATERAL
        if finding is not None and finding.severity is Severity.INFO:
            return None
        vague = finding is None or report.vague
        # An exception with words of its own is news, even of a rank that had lost a peer before.
        ends = report.sign is Sign.DEATH or (vague and finding != UNKNOWN_EXCEPTION)
        if ends and (self._complained_before(report) or self.wanted <= report.time):
            return _Strength.COLLATERAL
        if report.sign is Sign.DEATH and (self._in_aftermath(report) or self._by_launcher(report)):
            return _Strength.VAGUE
        return _Strength.VAGUE if vague else _Strength.NAMES_CAUSE

    def _complained_before(self, death: Report) -> bool:
        """Whether the rank had lost or waited for a peer before it ended."""
        return death.rank is not None and self.complained.get(death.rank, death.time + 1) <= death.time

    def _in_aftermath(self, death: Report) -> bool:
        """Whether others had been silent or had complained for a while when it came."""
        return any(
            rank != death.rank and death.time - since > AFTERMATH
            for since_by_rank in (self.complained, self.silent)
            for rank, since in since_by_rank.items()
        )

    def _by_launcher(self, death: Report) -> bool:
        """Whether it is one of many kills that came well after another rank had ended without a word."""
        everybody = self.nodes.keys() | {r.rank for r in self.reports}
        if not _is_kill(death) or len(self.killed) < 2 or len(self.killed) * 2 < len(everybody) - 1:
            return False
        return any(
            r.sign is Sign.FAULT
            and r.vague
            and r.rank is not None
            and r.rank not in self.killed
            and death.time - r.time > TOGETHER
            and not self._complained_before(r)
            for r in self.reports
        )

    def _all_silent(self) -> bool:
        """Whether all ranks of the layout fell silent, each at about the same time as the one before."""
        everybody = self.structure.nodes.keys()
        times = sorted(time for rank, time in self.silent.items() if rank in everybody)
        at_once = all(later - earlier <= TOGETHER for earlier, later in itertools.pairwise(times))
        return len(everybody) >= _ALL and len(times) == len(everybody) and at_once

    def _shared(self, first: Report) -> bool:
        """Whether it is a failure of the network or a file server that others report, too."""
        finding, node = first.finding, self._node_of(first)
        if finding is None or finding.blame is not Blame.NETWORK or finding.collateral or not node:
            return False
        return any(r.finding == finding and self._node_of(r) not in ("", node) for r in self.reports)

    def _error_of_its_node(self, first: Report, told: list[tuple[_Strength, Report]]) -> Report:
        """The error of the node behind a process's, where one was reported."""
        if first.finding is not None and first.finding.severity in (Severity.PROGRAM, Severity.SEV1):
            return first
        here = (
            r
            for strength, r in told
            if strength is _Strength.NAMES_CAUSE
            and _of_node(r)
            and abs(r.time - first.time) <= MEMORY_WINDOW
            and (
                (r.rank is not None and r.rank == first.rank)
                or (r.rank is None and r.node and r.node == self._node_of(first))
            )
        )
        found = next(here, first)
        # The node's report need not know whose GPU it was; the rank that failed there does.
        known = {"rank": first.rank} if found.rank is None else {}
        return msgspec.structs.replace(found, **known) if found is not first else first

    def _independent(
        self, first: Report, strength: _Strength, told: list[tuple[_Strength, Report]]
    ) -> Iterable[Report]:
        """Reports of other ranks or nodes that the first cannot have caused."""
        for other_strength, other in told:
            same_node = other.rank is None and other.node == self._node_of(first)
            if other_strength is not strength or same_node or self._place(other) == self._place(first):
                continue
            together = abs(other.time - first.time) <= TOGETHER and _sudden(first) and _sudden(other)
            if together or _of_node(other):
                yield other

    # ------------------------------------------------------------ nodes

    def _node_of(self, report: Report) -> str:
        if report.node or report.rank is None:
            return report.node
        return self.nodes.get(report.rank, "")

    def _place(self, report: Report) -> tuple[int | None, str]:
        return report.rank, self._node_of(report)

    def _lost_with(self, first: Report) -> int:
        """Nodes that were lost at about the same time as the first, itself included."""
        lost = (r for r in self.reports if r.finding == LOST_CONNECTION and r.node)
        return len({r.node for r in lost if abs(r.time - first.time) <= LOST_WITHIN})

    def _repeated_node(self) -> str:
        """A node on which several ranks, or one many times, had to be restarted."""
        restarts: dict[str, list[int | None]] = defaultdict(list)
        for report in self.reports:
            if report.sign is Sign.RESTART and (node := self._node_of(report)):
                restarts[node].append(report.rank)
        guilty = [node for node, ranks in restarts.items() if len(set(ranks)) > 1 or len(ranks) > 2]
        # The same on several nodes is no node's fault.
        return guilty[0] if len(guilty) == 1 else ""

    def _against_node(self, node: str, told: list[tuple[_Strength, Report]]) -> Verdict:
        there = [r for r in self.reports if r.sign is Sign.RESTART and self._node_of(r) == node]
        ranks = tuple(sorted({r.rank for r in there if r.rank is not None}))
        return self._compose(ranks, REPEATED, there[-1], [self._sentence(r) for r in there], told)

    # ------------------------------------------------------------ the verdict

    def _compose(
        self,
        suspects: tuple[int, ...],
        finding: Finding,
        cause: Report | None,
        evidence: list[str],
        told: list[tuple[_Strength, Report]],
        causes: Sequence[Report] = (),
    ) -> Verdict:
        others = [r for _, r in told if r.rank is not None and r.rank not in suspects]
        victims = {r.rank for r in others if r.finding and r.finding.collateral and r.sign is not Sign.ENDED}
        collateral = {r.rank for r in others}
        nodes: list[str] = []
        if finding.blame is Blame.NODE:
            nodes = [self._node_of(cause)] if cause else []
            nodes = nodes if any(nodes) else [n for n in map(self.nodes.get, suspects) if n][:1]
        nodes += [self._node_of(r) for r in causes if r.finding and r.finding.blame is Blame.NODE]
        more = [self._sentence(r) for r in self.reports]
        lost = 0 if cause is None or finding != LOST_CONNECTION else self._lost_with(cause)
        if lost >= LOST_NODES:
            evidence = [f"{lost} nodes were lost at about the same time: by the network", *evidence]
        return Verdict(
            suspects,
            tuple(sorted(rank for rank in victims if rank is not None)),
            tuple(sorted(rank for rank in collateral if rank is not None)),
            tuple(dict.fromkeys(filter(None, nodes))),
            finding,
            finding.severity is Severity.SEV1 and finding.blame is Blame.NODE and lost < LOST_NODES,
            _action(finding),
            cause,
            tuple(dict.fromkeys([*evidence, *more])),
        )

    def _sentence(self, report: Report) -> str:
        where = f"rank {report.rank}" if report.rank is not None else f"node {report.node}"
        if report.rank is None and not report.node:
            where = "somebody"
        elif report.rank is not None and report.node:
            where += f" on {report.node}"
        what = report.finding.error if report.finding else report.sign.value
        if report.sign is Sign.SILENT and self.excuses.excuse(report):
            what = "silent for a reason"
        if report.finding and report.finding.collateral:
            what += " (only lost or waited for others)"
        text = f"{where} at +{report.time - self.start:.1f} s: {what}"
        if report.detail and report.detail != what:
            text += f": {report.detail.splitlines()[0][:200]}"
        if report.arrival is not None and report.arrival - report.time > 1.0:
            text += f" (heard {report.arrival - report.time:.1f} s later)"
        return text


def _of_node(report: Report) -> bool:
    """Whether the report is of an error of the node itself."""
    finding = report.finding
    return (
        finding is not None
        and (finding.severity, finding.blame) == (Severity.SEV1, Blame.NODE)
        and not finding.collateral
    )


def _sudden(report: Report) -> bool:
    """Whether what it tells comes without a word of its own, so that it has no cause that it could name."""
    return report.sign in (Sign.DEATH, Sign.SILENT) or report.finding == HOST_MEMORY or _of_node(report)


def _complains(report: Report) -> bool:
    """Whether the report comes from a rank that only lost or waited for others."""
    finding = report.finding
    return report.sign is not Sign.ENDED and finding is not None and finding.collateral


def _weight(strength: _Strength, report: Report) -> tuple[object, ...]:
    """The order of judgement: strength, then time."""
    return (strength, report.time, _order(report))


def _is_kill(report: Report) -> bool:
    return report.sign is Sign.DEATH and report.finding is not None and report.finding.error == KILLED


def _action(finding: Finding) -> Action:
    match finding.severity:
        case Severity.SEV1:
            return Action.NODE_OUT
        case Severity.SEV2:
            return Action.NEW_PROCESS
        case Severity.SEV3:
            return Action.RETRY
        case Severity.PROGRAM:
            return Action.STOP
    return Action.NOTHING

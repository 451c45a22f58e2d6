"""Who is guilty in an incident, by all that is known of it, and when that has to be told (again)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from unicron_hpc.detect.attribution import judge
from unicron_hpc.detect.exceptions import UNKNOWN_EXCEPTION
from unicron_hpc.detect.exits import HOST_MEMORY, KILLED
from unicron_hpc.detect.reports import Report, Sign, Structure, Verdict
from unicron_hpc.detect.severity import LOST_CONNECTION, NOT_ANSWERING, TASK_HANG, Method
from unicron_hpc.planner.layout import Layout
from unicron_hpc.report.journal import Journal
from unicron_hpc.supervisor.incident import Evidence, Incident

#: Errors that say that something failed, and not what.
_VAGUE = ("exited", UNKNOWN_EXCEPTION.error, TASK_HANG.error, "transition timed out")
#: Errors of a process that a signal ended.
_DEATHS = ("killed", "crashed")
#: Longest list of evidence in the journal.
MOST_EVIDENCE = 40


class Verdicts:
    """Tells the journal who is guilty, and again when a later report changes that.

    Parameters
    ----------
    task
        Its name.
    journal
        Takes `verdict`.
    """

    def __init__(self, task: str, journal: Journal) -> None:
        self._task = task
        self._journal = journal
        self._told: dict[int, tuple[object, ...]] = {}

    def told(self, incident: Incident) -> bool:
        """Whether there has been a verdict."""
        return incident.number in self._told

    def tell(self, incident: Incident, layout: Layout | None, epoch: int) -> Verdict:
        """Judge an incident by what is known now; journaled where it differs from what was told before."""
        nodes = {} if layout is None else {rank: seat.node for rank, seat in enumerate(layout.seats)}
        for evidence in incident.evidence:
            if evidence.rank is not None and evidence.node:
                nodes[evidence.rank] = evidence.node
        # Without the groups: everybody has answered the order to cut or is known not to have, so that
        # nobody is accused for having nothing to complain of.
        killed = {e.node for e in incident.evidence if e.finding.error == KILLED}
        verdict = judge([report_of(e, killed) for e in incident.evidence], Structure(nodes=nodes))
        cause = verdict.cause
        if cause is not None and cause.rank is not None and cause.node:
            # Where it was then: another node may have taken its seat since.
            nodes[cause.rank] = cause.node
        guilty = guilty_nodes(verdict, nodes)
        error = "" if verdict.finding is None else verdict.finding.error
        core = (verdict.suspects, guilty, error)
        before = self._told.get(incident.number)
        if verdict.finding is not None and core != before:
            self._told[incident.number] = core
            self._journal.write(
                "verdict",
                epoch,
                task=self._task,
                incident=incident.number,
                suspects=list(verdict.suspects),
                nodes=list(guilty),
                victims=list(verdict.victims),
                collateral=list(verdict.collateral),
                error=error,
                severity=verdict.finding.severity.name,
                blame=verdict.finding.blame.value,
                evidence=list(verdict.evidence[:MOST_EVIDENCE]),
                corrects=before is not None,
            )
        return verdict


def guilty_nodes(verdict: Verdict, nodes: Mapping[int, str]) -> tuple[str, ...]:
    """The nodes of those who are guilty, each once."""
    named = [*verdict.suspect_nodes, *(nodes.get(rank, "") for rank in verdict.suspects)]
    return tuple(sorted({name for name in named if name}))


def report_of(evidence: Evidence, killed: Collection[str] = ()) -> Report:
    """A piece of evidence as the court wants it; `killed` are the nodes on which a process got SIGKILL."""
    finding = evidence.finding
    explains = finding == HOST_MEMORY and evidence.node in killed
    return Report(
        evidence.time,
        Sign.MEMORY_KILL if explains else _sign(evidence),
        evidence.rank,
        evidence.node,
        finding,
        vague=finding.error.startswith(_VAGUE),
        arrival=evidence.seen,
        detail=f"by {evidence.method.value}: {_line(evidence)}",
    )


def _sign(evidence: Evidence) -> Sign:
    if evidence.finding in (LOST_CONNECTION, NOT_ANSWERING):
        return Sign.SILENT
    if evidence.method is Method.PROCESS and evidence.finding.error.startswith(_DEATHS):
        return Sign.DEATH
    return Sign.FAULT


def _line(evidence: Evidence) -> str:
    """The line of its text that says most: an exception's comes last in its traceback."""
    lines = [line.strip() for line in evidence.detail.splitlines() if line.strip()]
    if not lines:
        return evidence.finding.error
    return lines[-1] if evidence.method is Method.EXCEPTION else lines[0]

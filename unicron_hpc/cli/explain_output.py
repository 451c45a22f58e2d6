"""What `unicron explain` shows: to people, and as JSON."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from unicron_hpc.detect.log_scan import LogFinding
from unicron_hpc.detect.log_verdict import CANCELLED, Story
from unicron_hpc.detect.reports import Verdict
from unicron_hpc.report.plain import plain

_WIDTH = 100
#: Findings of one kind that are shown by their lines; JSON has all.
_MOST_LINES = 5


def finding_as_data(story: Story, k: int) -> dict[str, Any]:
    """One finding for JSON."""
    finding, rule = story.findings[k], story.findings[k].rule
    return {
        "file": finding.file,
        "line_number": finding.line_number,
        "line": finding.line,
        "text": finding.text,
        "error": rule.error,
        "severity": rule.severity,
        "blame": rule.blame.value,
        "advice": rule.advice,
        "meaning": rule.meaning,
        "first_cause": k == story.first_cause,
        "consequence": k in story.consequences,
        "collateral": rule.collateral,
        "drain": rule.drains,
        "rule": rule.name,
        "source": rule.source,
        "time": finding.time,
        "rank": finding.rank,
        "host": finding.host,
        "pid": finding.pid,
        "xid": finding.xid,
        "pci": finding.pci,
        "peer": finding.peer,
        "tasks": list(finding.tasks),
        "exit_code": finding.exit_code,
        "sequence": finding.sequence,
        "count": finding.count,
        "last_line_number": finding.last_line_number,
    }


def show_story(story: Story, files: int) -> str:
    """All findings for people: the first cause, what followed from it, and the rest."""
    if not story.findings:
        return f"Nothing that is known as an error was found in {files} log{'s' if files != 1 else ''}."
    cause = story.first_cause
    blocks = []
    if cause is not None:
        blocks.append(_block("First cause", [story.findings[cause]]))
    else:
        blocks.append(_without_cause(story))
    others = [k for k in range(len(story.findings)) if k != cause]
    groups = (
        ("Consequences", [k for k in others if k in story.consequences]),
        ("Other errors", [k for k in others if k not in story.consequences and _failed(story, k)]),
        ("Also seen", [k for k in others if k not in story.consequences and not _failed(story, k)]),
    )
    for title, indices in groups:
        if indices:
            blocks.append(_block(title, [story.findings[k] for k in indices]))
    return "\n\n".join(blocks)


def show_verdict(verdict: Verdict) -> str:
    """A verdict for people."""
    several = "s" if len(verdict.suspect_nodes) > 1 else ""
    nodes = ", ".join(verdict.suspect_nodes)
    rows = [
        ("suspect", _ranks(verdict.suspects) or (f"node{several} {nodes}" if nodes else "nobody")),
        (f"node{several}", nodes if verdict.suspects else ""),
        ("victims", _ranks(verdict.victims)),
        ("collateral", _ranks(verdict.collateral)),
        ("cause", verdict.finding.error if verdict.finding else ""),
        ("severity", verdict.finding.severity.name if verdict.finding else ""),
        ("blame", verdict.finding.blame.value if verdict.finding else ""),
        ("action", verdict.action.value + (f", drain the node{several}" if verdict.drain else "")),
    ]
    shown = [f"{name + ':':<12}{value}" for name, value in rows if value]
    evidence = [f"  {plain(sentence)}" for sentence in verdict.evidence]
    return "\n".join([*shown, *(["evidence:"] if evidence else []), *evidence])


def _failed(story: Story, k: int) -> bool:
    return story.findings[k].rule.severity != "INFO"


def _without_cause(story: Story) -> str:
    suspects = [rank for rank in story.verdict.suspects if rank >= 0]
    if suspects:
        why = story.verdict.evidence[0].partition(": ")[2]
        return f"No cause in these logs. Look at {_ranks(suspects)} first: {why}."
    if story.consequences:
        if story.findings[min(story.consequences)].rule.error == CANCELLED:
            return (
                "No failure in these logs before the job or step was cancelled."
                " If nobody did that, look at the other ranks' and nodes' logs."
            )
        return (
            "No cause in these logs: they hold consequences only. Look at the other ranks' and nodes' logs."
        )
    return "Nothing failed."


def _block(title: str, findings: Sequence[LogFinding]) -> str:
    kinds: dict[str, list[LogFinding]] = {}
    for finding in findings:
        kinds.setdefault(finding.rule.name, []).append(finding)
    return "\n".join([title, *(line for kind in kinds.values() for line in _kind(kind))])


def _kind(findings: Sequence[LogFinding]) -> Iterator[str]:
    """All findings by one row of the table."""
    rule = findings[0].rule
    drain = ", have it drained" if rule.drains else ""
    yield f"  {rule.error}  [{rule.severity}, blame: {rule.blame.value}{drain}]"
    yield from _wrapped(rule.meaning)
    if rule.advice:
        yield from _wrapped(f"-> {rule.advice}")
    for finding in findings[:_MOST_LINES]:
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        yield f"    {_where(finding)}{times}"
        for line in finding.text.splitlines()[:3]:
            line = plain(line)
            yield f"      | {line if len(line) <= 2 * _WIDTH else line[: 2 * _WIDTH] + ' ...'}"
    if len(findings) > _MOST_LINES:
        rest = findings[_MOST_LINES:]
        ranks = sorted({finding.rank for finding in rest if finding.rank is not None})
        yield f"    and {len(rest)} more" + (f" ({_ranks(ranks)})" if ranks else "")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _where(finding: LogFinding) -> str:
    parts = [f"{finding.file}:{finding.line_number}"]
    if finding.time is not None:
        moment = dt.datetime.fromtimestamp(finding.time, dt.UTC)
        parts.append(moment.strftime("%Y-%m-%d %H:%M:%S"))
    if finding.rank is not None:
        parts.append(f"rank {finding.rank}")
    elif finding.tasks:
        parts.append(_ranks(finding.tasks))
    if finding.host:
        parts.append(f"on {finding.host}")
    if finding.pci:
        parts.append(f"GPU {finding.pci}" if finding.xid else f"device {finding.pci}")
    return "  ".join(parts)


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0-3, 7`."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    words = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)
    return "" if not words else f"rank{'s' if len(ranks) > 1 else ''} {words}"

"""An incident's story as lines of text."""

from __future__ import annotations

import time

from unicron_hpc.report.sentences import names, ranks_named, seconds
from unicron_hpc.report.story import IncidentStory

#: Witnesses that are named; the journal has them all.
MOST_WITNESSES = 6


def incident_lines(story: IncidentStory) -> list[str]:
    """A heading, then what broke, how we know, what was done and how long it took."""
    when = "" if story.detected is None else time.strftime(" at %H:%M:%S", time.localtime(story.detected))
    more = len(story.evidence) - MOST_WITNESSES
    known = [*story.evidence[:MOST_WITNESSES], *([f"and {more} more"] if more > 0 else [])]
    blocks = [
        ("what broke", [f"{story.error} ({story.severity or 'severity not known'}): {guilty(story)}"]),
        ("how we know", known),
        ("only suffered", [ranks_named(story.victims)] if story.victims else []),
        ("what was done", story.actions),
        ("how long", [durations(story)]),
    ]
    lines = [f"incident {story.number} of task {story.task}{when}, {story.ended}"]
    for title, texts in blocks:
        for place, text in enumerate(texts):
            lines.append(f"  {title if place == 0 else '':<14} {text}")
    return lines


def guilty(story: IncidentStory) -> str:
    """The guilty ranks and nodes, or where it was seen."""
    ranks = ranks_named(story.ranks) if story.ranks else ""
    nodes = names(story.nodes) if story.nodes else ""
    return " on ".join(filter(None, (ranks, nodes))) or story.where or "nobody named"


def durations(story: IncidentStory) -> str:
    """`0.28 s in all: 0.02 s until noticed, 0.10 s in transitions`."""
    if story.seconds is None:
        return "not over yet" if story.ended == "open" else story.ended
    parts = [f"{seconds(story.transition_seconds)} in transitions"]
    if story.detection_seconds is not None:
        parts.insert(0, f"{seconds(story.detection_seconds)} until it was noticed")
    return f"{seconds(story.seconds)} from the first sign to the next commit: {', '.join(parts)}"

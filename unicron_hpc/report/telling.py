"""An incident's story as lines of text."""

from __future__ import annotations

import re
import time

from unicron_hpc.report.sentences import SEVERITIES, guilty, ranks_named, seconds
from unicron_hpc.report.story import IncidentStory

#: Witnesses that are named; the journal has them all.
MOST_WITNESSES = 6


def incident_lines(story: IncidentStory) -> list[str]:
    """A heading, then what broke, how we know, what was done and how long it took."""
    when = "" if story.detected is None else f" at {moment(story.detected)}"
    more = len(story.evidence) - MOST_WITNESSES
    known = [*map(witness, story.evidence[:MOST_WITNESSES]), *([f"and {more} more"] if more > 0 else [])]
    blocks = [
        ("what broke", [f"{culprit(story)}: {story.error}", SEVERITIES.get(story.severity, story.severity)]),
        ("how we know", known),
        ("only suffered", [ranks_named(story.victims)] if story.victims else []),
        ("what was done", story.actions),
        ("how long", [durations(story)]),
    ]
    lines = [f"incident {story.number} of task {story.task}{when}, {story.ended}"]
    for title, texts in blocks:
        for place, text in enumerate(filter(None, texts)):
            lines.append(f"  {title if place == 0 else '':<14} {text}")
    return lines


def moment(when: float) -> str:
    """A Unix time as people say it: with the day, unless that is today."""
    day = day_of(when)
    clock = time.strftime("%H:%M:%S", time.localtime(when))
    return clock if day == day_of(time.time()) else f"{day} {clock}"


def day_of(when: float) -> str:
    """The local day of a Unix time, as `2026-11-30`."""
    return time.strftime("%Y-%m-%d", time.localtime(when))


def culprit(story: IncidentStory) -> str:
    """The guilty ranks and nodes, or where it was seen."""
    return guilty(story.ranks, story.nodes) or story.where or "nobody named"


def witness(words: str) -> str:
    """A witness's words without what only gloo's developers need, and with the time as people tell it."""
    words = re.sub(r"\[/\S+\.(?:cc|cpp|h):\d+\] ", "", words)
    words = re.sub(r"\. This i\w*(?: typically\b.*)?$", "", words)
    words = re.sub(r"^(?:node )?(\S+|rank \d+ on \S+) at \+0\.0 s:", r"\1:", words)
    return re.sub(r"^(?:node )?(\S+|rank \d+ on \S+) at \+([\d.]+) s:", r"\1, \2 s later:", words)


def durations(story: IncidentStory) -> str:
    """`0.28 s in all: 0.02 s until noticed, 0.10 s in transitions`."""
    if story.seconds is None:
        return "not over yet" if story.ended == "open" else story.ended
    parts = [f"{seconds(story.transition_seconds)} in transitions"]
    if story.detection_seconds is not None:
        parts.insert(0, f"{seconds(story.detection_seconds)} until it was noticed")
    return f"{seconds(story.seconds)} from the first sign to the next commit: {', '.join(parts)}"

"""The incidents of a run, from its journal: what broke, how we know, what was done, how long it took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from unicron_hpc.report.journal import NOT_AS_EXPECTED
from unicron_hpc.report.sentences import ACTIONS, action, first_words, place, sentence

#: Events without an incident's number that belong to the one that is open.
_STEPS = ("plan_chosen", "state_lost", "stacks_dumped", "iteration_reused")


@dataclass(slots=True)
class IncidentStory:
    """One incident.

    Attributes
    ----------
    number, task
        Which it is, and of which task.
    error, severity, where
        What broke, how badly, and where; of the latest verdict.
    nodes, ranks
        The guilty ones.
    victims
        Ranks that only suffered from it.
    methods, evidence
        How we know: methods of detection, and the words of every witness.
    actions
        What was done, in order; a decision for the first whom it was about.
    decided
        Which decisions that were.
    began, detected
        Unix time of the fault where it is known, and of when we knew of it.
    seconds
        From the first sign to the next committed iteration; None while it is open.
    detection_seconds, transition_seconds
        Of these, until it was noticed (None where the fault's own time is not known), and in transitions.
    ended
        How, in words; `open` while it is not over.
    before
        Seconds of its earlier parts, where it was over and was opened again.
    """

    number: int
    task: str
    error: str = "not known yet"
    severity: str = ""
    where: str = ""
    nodes: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    victims: list[int] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    decided: list[str] = field(default_factory=list)
    began: float | None = None
    detected: float | None = None
    seconds: float | None = None
    detection_seconds: float | None = None
    transition_seconds: float = 0.0
    ended: str = "open"
    before: float = 0.0

    def open_again(self) -> None:
        """It goes on: what was done about it was not enough."""
        if self.seconds is not None:
            self.before, self.seconds, self.ended = self.seconds, None, "open"


def incidents_of(events: Iterable[Mapping[str, Any]]) -> list[IncidentStory]:
    """Every incident in a journal, oldest first."""
    told: list[IncidentStory] = []
    stories: dict[int, IncidentStory] = {}
    latest: dict[str, IncidentStory] = {}
    for event in events:
        if event["type"] == "job_started":
            # A requeued job goes on in its journal, and counts its incidents anew.
            _end(stories.values(), "not over when the job began anew")
            told += _in_order(stories)
            stories, latest = {}, {}
        with suppress(*NOT_AS_EXPECTED):
            _take(event, stories, latest)
    return [*told, *_in_order(stories)]


def _in_order(stories: Mapping[int, IncidentStory]) -> list[IncidentStory]:
    return [stories[number] for number in sorted(stories)]


def _end(stories: Iterable[IncidentStory], how: str) -> None:
    """Say of those that are open how the run ended around them."""
    for story in stories:
        if story.ended == "open":
            story.ended = how


def _take(
    event: Mapping[str, Any], stories: dict[int, IncidentStory], latest: dict[str, IncidentStory]
) -> None:
    """Add an event to the story that it belongs to; `latest` is each task's."""
    kind = event["type"]
    number = event.get("incident")
    if kind == "job_finished":
        _end(stories.values(), f"not over when the job {event['state']}")
    elif kind in ("drain_result", "agent_lost"):
        # Events of an incident need not name its task, so that one may be the latest of several.
        for story in {story.number: story for story in latest.values()}.values():
            # The answer to a drain comes late; a node that is lost after an incident is a matter of its own.
            if event["node"] in story.nodes and (kind == "drain_result" or story.seconds is None):
                story.actions.append(sentence(event))
    elif number is None:
        told = latest.get(str(event.get("task", "")))
        if kind in _STEPS and told is not None and told.seconds is None:
            told.actions.append(sentence(event))
    else:
        task = str(event.get("task", ""))
        story = stories.setdefault(int(number), IncidentStory(int(number), task))
        latest[task] = story
        _add(story, event)


def _add(story: IncidentStory, event: Mapping[str, Any]) -> None:
    match event["type"]:
        case "fault_detected":
            _fault(story, event)
        case "verdict":
            story.error, story.severity = str(event["error"]), str(event["severity"])
            story.ranks = list(event.get("suspects") or ())
            story.nodes = list(event.get("nodes") or ()) or story.nodes
            story.victims = sorted({*(event.get("victims") or ()), *(event.get("collateral") or ())})
            heard = [str(words) for words in event["evidence"]]
            # What a witness said first is in the verdict again, with its time.
            early = [words for words in story.evidence if not _told_again(words, heard)]
            story.evidence = [*early, *heard]
        case "action_chosen":
            if event.get("severity") == "SEV1":
                story.open_again()  # a node is out for what came to light later
            # What was decided, in place of what the severity alone made likely.
            story.actions = [action for action in story.actions if action not in ACTIONS.values()]
            if event["action"] not in story.decided:
                story.decided.append(event["action"])
                # Where a new process has its state from is told by the transition.
                told = event.get("reason") if event.get("rule") != "new process" else ""
                why = f" ({told})" if told else ""
                story.actions.append(f"{action(event)}{why}")
        case "transition_started":
            story.open_again()
        case "transition_finished":
            story.transition_seconds += float(event["seconds"])
            story.actions.append(sentence(event))
        case "incident_closed":
            story.seconds = story.before + float(event["seconds"])
            story.ended = f"over at iteration {event['iteration']}"
            story.detection_seconds = event.get("detection_seconds", story.detection_seconds)


def _fault(story: IncidentStory, event: Mapping[str, Any]) -> None:
    words = first_words(event)
    story.evidence.append(
        f"{place(event)}: {event['error']} ({event['method']}){f': {words}' if words else ''}"
    )
    if event["method"] not in story.methods:
        story.methods.append(event["method"])
    if story.detected is None:
        story.detected, story.began = float(event["time"]), event.get("fault_time")
        story.error, story.severity, story.where = str(event["error"]), str(event["severity"]), place(event)
        story.actions.append(ACTIONS.get(story.severity, story.severity))
    if event.get("node") and event["node"] not in story.nodes:
        story.nodes.append(event["node"])
    if event.get("rank") is not None and event["rank"] not in story.ranks:
        story.ranks.append(event["rank"])


def _told_again(words: str, verdict: Iterable[str]) -> bool:
    """Whether a verdict's evidence has the same witness; it writes `rank 2 on n3 at +0.1 s: ...`."""
    who = words.partition(":")[0]
    return words in verdict or any(who == re.sub(r"^node | at \+.*", "", line) for line in verdict)

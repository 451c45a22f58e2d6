"""What is done about a fault: every rule is one row, the first that fits decides. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from unicron_hpc.detect.severity import Blame, Finding, Severity


class Action(enum.StrEnum):
    """What is done."""

    NOTE = "a line in the journal"
    RETRY = "again in place"
    RESTART = "a new process"
    NODE_OUT = "the node is out and to be drained"
    NODE_ON_TRIAL = "the node is out; drained once training goes on without it"
    NODE_AWAY = "the node is out, not drained"
    STOP = "the run ends"


class Budgets(Protocol):
    """The settings of `recovery:` that limit how often something is tried."""

    @property
    def max_retries(self) -> int: ...
    @property
    def max_restarts_per_rank(self) -> int: ...
    @property
    def max_faults_per_node(self) -> int: ...
    @property
    def max_incidents(self) -> int: ...
    @property
    def lost_together(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, and what went before.

    Attributes
    ----------
    finding
        What was seen.
    repeats
        How often the same was seen at the same place in this incident before.
    restarts
        Processes that this rank's seat has used up since the last commit, this one included.
    faults_on_node
        Incidents within `recovery.fault_window` in which processes of this node and of no other failed,
        this one included.
    elsewhere
        The same error has had another node taken out in this incident.
    lost_together
        Nodes that went silent at the same time.
    """

    finding: Finding
    repeats: int = 0
    restarts: int = 0
    faults_on_node: int = 0
    elsewhere: bool = False
    lost_together: int = 1

    @property
    def level(self) -> Severity:
        return self.finding.severity

    @property
    def of_process(self) -> bool:
        """Whether a process is to be replaced whose end nobody wanted and nobody else caused."""
        return self.level is Severity.SEV2 and self.finding.blame in (Blame.PROCESS, Blame.NODE)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row.

    Attributes
    ----------
    name
        As the journal has it.
    when
        Whether it applies.
    condition, why
        The same in words, and the reason for the action.
    action
        What is done.
    severity
        The level that this action belongs to.
    """

    name: str
    condition: str
    action: Action
    why: str
    severity: Severity
    when: Callable[[Case, Budgets], bool]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about one fault, at which level, by which rule and why."""

    action: Action
    severity: Severity
    rule: str
    reason: str


RULES: Sequence[Rule] = (
    Rule(
        "nothing failed",
        "a warning, or an end that somebody wanted",
        Action.NOTE,
        "nothing has to be mended and nobody is to blame",
        Severity.INFO,
        lambda c, b: c.level is Severity.INFO,
    ),
    Rule(
        "fault of the program",
        "out of memory, loss not finite, an assertion, a wrong type or setting",
        Action.STOP,
        "it would come again on any node: no spare is used, nobody is drained",
        Severity.PROGRAM,
        lambda c, b: c.level is Severity.PROGRAM,
    ),
    Rule(
        "saw a peer go",
        "a broken connection, a collective that timed out",
        Action.RETRY,
        "the fault is elsewhere: this rank is sound and keeps its state",
        Severity.SEV3,
        lambda c, b: c.finding.collateral,
    ),
    Rule(
        "lost together",
        "`lost_together` nodes or more go silent at the same time",
        Action.NODE_AWAY,
        "a switch, a power line or the file system: so many nodes do not fail at once by themselves",
        Severity.SEV1,
        lambda c, b: c.level is Severity.SEV1 and c.lost_together >= b.lost_together,
    ),
    Rule(
        "not the node's doing",
        "a node is gone because of the network, or since somebody wanted it so (`scancel`, requeue, reboot)",
        Action.NODE_AWAY,
        "it cannot be used, but draining it would punish the innocent",
        Severity.SEV1,
        lambda c, b: c.level is Severity.SEV1 and c.finding.blame in (Blame.NETWORK, Blame.NOBODY),
    ),
    Rule(
        "bad node",
        "silence of the whole node, broken hardware (ECC, NVLink, driver, Xid)",
        Action.NODE_OUT,
        "no process on it can be trusted",
        Severity.SEV1,
        lambda c, b: c.level is Severity.SEV1,
    ),
    Rule(
        "follows the program",
        "an error for which a node was taken out comes again on another one in the same incident",
        Action.STOP,
        "it was not the node, which is not drained",
        Severity.PROGRAM,
        lambda c, b: c.of_process and c.elsewhere,
    ),
    Rule(
        "the program again",
        "a rank that got a new process reports the same error, for which the program is to blame",
        Action.STOP,
        "a fresh process met it again: no other and no other node would help",
        Severity.PROGRAM,
        lambda c, b: (
            c.level is Severity.SEV2
            and c.finding.blame is Blame.PROGRAM
            and c.repeats > 0
            and c.restarts > 1  # not only told twice
        ),
    ),
    Rule(
        "new processes do not help",
        "a rank failed more than `max_restarts_per_rank` times without a committed iteration",
        Action.NODE_ON_TRIAL,
        "SEV2 has failed, the next level is the node; whether it was the node shows when another takes over",
        Severity.SEV1,
        lambda c, b: (
            (c.level is Severity.SEV2 or c.repeats >= b.max_retries) and c.restarts > b.max_restarts_per_rank
        ),
    ),
    Rule(
        "again and again on this node",
        "processes of this node and of no other failed in more than `max_faults_per_node` incidents within"
        " `fault_window`",
        Action.NODE_ON_TRIAL,
        "each was mended by a new process, but the place stays the same",
        Severity.SEV1,
        lambda c, b: c.of_process and c.faults_on_node > b.max_faults_per_node,
    ),
    Rule(
        "new process",
        "a process ended, or reported an error that its state may not survive",
        Action.RESTART,
        "a fresh process in the same seat takes its state from a peer",
        Severity.SEV2,
        lambda c, b: c.level is Severity.SEV2,
    ),
    Rule(
        "again in place does not help",
        "the same rank reports the same error after `max_retries` attempts in one incident",
        Action.RESTART,
        "SEV3 has failed, the next level is the process",
        Severity.SEV2,
        lambda c, b: c.repeats >= b.max_retries,
    ),
    Rule(
        "again in place",
        "anything else that a new attempt may mend",
        Action.RETRY,
        "processes and their state are sound; groups are cut and built anew",
        Severity.SEV3,
        lambda c, b: True,
    ),
)


def decide(case: Case, budgets: Budgets) -> Decision:
    """The action for a fault: the first rule of `RULES` that fits."""
    rule = next(rule for rule in RULES if rule.when(case, budgets))
    return Decision(rule.action, rule.severity, rule.name, rule.why)


@dataclass(frozen=True, slots=True)
class Spent:
    """How much of the budgets is used up.

    Attributes
    ----------
    transitions
        Transitions that the open incident has had, the one about to begin included.
    places
        Ranks and nodes that failed in it by themselves.
    incidents
        Incidents of the run.
    """

    transitions: int = 0
    places: int = 0
    incidents: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """A row of the table of budgets: where it is `exceeded`, the run ends FAILED with the first cause."""

    name: str
    condition: str
    why: str
    exceeded: Callable[[Spent, Budgets], bool]


LIMITS: Sequence[Limit] = (
    Limit(
        "no progress",
        "2 x (`max_retries` + 1) transitions, and one for each rank or node that failed, without a committed"
        " iteration",
        "each level has had its retries; every further place that fails counts anew",
        lambda s, b: s.transitions > 2 * (b.max_retries + 1) + s.places,
    ),
    Limit(
        "too many incidents",
        "more than `max_incidents` in the run",
        "something is wrong that is not mended by going on",
        lambda s, b: s.incidents > b.max_incidents,
    ),
)


def exhausted(spent: Spent, budgets: Budgets) -> Limit | None:
    """The first limit that is exceeded."""
    return next((limit for limit in LIMITS if limit.exceeded(spent, budgets)), None)


def rules_table() -> str:
    """The rules and the limits as Markdown tables, for docs/failure-modes.md."""
    lines = ["| rule | when | level | action | why |", "|---|---|---|---|---|"]
    for rule in RULES:
        lines.append(
            f"| {rule.name} | {rule.condition} | {rule.severity.name} | {rule.action} | {rule.why} |"
        )
    lines += ["", "| the run ends FAILED | when | why |", "|---|---|---|"]
    lines += [f"| {limit.name} | {limit.condition} | {limit.why} |" for limit in LIMITS]
    return "\n".join(lines)

"""A node as `scontrol show node` tells it: its state, the reason kept with it, and since when it runs."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from unicron_hpc.slurm.states import NodeState, parse_node_state

#: What may stand behind the reason (`src/api/node_info.c` of Slurm).
_BEHIND = (
    r"(?:\s+(?:Comment|Extra|InstanceId|InstanceType|ReservationName|TLSCertTokenSet|Topology|Parameters)=.*)?"
    r"\s*$"
)
#: With and without who gave it and when.
_REASONS = (
    re.compile(r"\sReason=(.*?) \[([^\[\]@]*)@[^\[\]]*\]" + _BEHIND),
    re.compile(r"\sReason=(.*?)()" + _BEHIND),
)
#: Reasons that slurmctld gives by itself; they are nobody's words.
OWN_REASONS = frozenset({"Not responding", "Node unexpectedly rebooted"})


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node as Slurm knows it.

    Attributes
    ----------
    name, state
        Its name and state.
    reason, by
        The reason kept with it and whose it is; empty where there is none.
    booted, started
        Unix time of its last boot and of its slurmd's start; None where Slurm does not say.
    """

    name: str
    state: NodeState
    reason: str = ""
    by: str = ""
    booted: float | None = None
    started: float | None = None

    @property
    def somebodys_reason(self) -> str:
        """The reason, if a person (or their tool) gave it."""
        return "" if self.reason in OWN_REASONS else self.reason


def parse_node_records(text: str) -> dict[str, NodeRecord]:
    """Nodes in the output of `scontrol show node --oneliner`, by name."""
    found = {}
    for line in text.splitlines():
        if line.startswith("NodeName="):
            # The reason is among the last fields, and its text may look like any other.
            reason = next(filter(None, (form.search(line) for form in _REASONS)), None)
            head = line[: reason.start()] if reason else line
            name = _word(head, "NodeName")
            found[name] = NodeRecord(
                name,
                parse_node_state(_word(head, "State")),
                reason[1].strip() if reason else "",
                reason[2] if reason else "",
                _time(_word(head, "BootTime")),
                _time(_word(head, "SlurmdStartTime")),
            )
    return found


def _word(line: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return match[1] if match else ""


def _time(text: str) -> float | None:
    """A time as Slurm prints it, in this machine's time zone; None for `None` or `Unknown`."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None

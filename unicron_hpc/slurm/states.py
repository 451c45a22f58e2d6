"""What Slurm's state words mean: one sentence per state, for nodes and for jobs.

Words that are not in the tables (a newer Slurm's) are never an error. Sources: man sinfo, man scontrol, man
squeue and man sacct of 22.05 to 24.11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NODE_BASES: dict[str, str] = {
    "ALLOCATED": "All of the node belongs to jobs.",
    "DOWN": "Slurm does not use the node: it failed, or an administrator took it out.",
    "ERROR": "Slurm found the node in an error state.",
    "FUTURE": "The node is configured but not there yet.",
    "IDLE": "No job has any of the node.",
    "MIXED": "Jobs have a part of the node.",
    "UNKNOWN": "slurmctld has just started and has not heard of the node.",
}

NODE_FLAGS: dict[str, str] = {
    "BLOCKED": "The node is held free for a job that wants it exclusively.",
    "CLOUD": "The node is made when needed.",
    "COMPLETING": "A job on the node is ending.",
    "DRAIN": "The node takes no new job.",
    "DYNAMIC_FUTURE": "The node was registered at run time in a future node's place.",
    "DYNAMIC_NORM": "The node was registered at run time.",
    "FAIL": "The node is expected to fail soon; it takes no new job.",
    "INVALID_REG": "The node registered with other hardware than configured.",
    "MAINTENANCE": "The node is in a maintenance reservation.",
    "NOT_RESPONDING": "The node's slurmd does not answer.",
    "PERFCTRS": "The node's performance counters are in use.",
    "PLANNED": "The backfill scheduler has planned a job for the node.",
    "POWERED_DOWN": "The node is powered off.",
    "POWERING_DOWN": "The node is being powered off.",
    "POWERING_UP": "The node is being powered on or configured.",
    "POWER_DOWN": "The node is to be powered off.",
    "POWER_DRAIN": "The node is drained for power saving.",
    "POWER_UP": "The node is to be powered on.",
    "REBOOT_ISSUED": "The node is being rebooted.",
    "REBOOT_REQUESTED": "The node is to be rebooted.",
    "RESERVED": "The node is in a reservation.",
    "RES": "The node is in a reservation.",
    "UNDRAIN": "The node is being taken out of drain.",
}

#: Flags with which a node can still run what we give it.
_HARMLESS = frozenset(
    {
        "BLOCKED", "CLOUD", "COMPLETING", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "PERFCTRS", "PLANNED", "RES",
        "RESERVED", "UNDRAIN",
    }
)  # fmt: skip
_SILENT = frozenset({"NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED"})

#: sinfo's suffixes.
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}

#: sinfo's words, long and short, that are not base words.
_COMPOUND: dict[str, tuple[str, tuple[str, ...]]] = {
    "ALLOC": ("ALLOCATED", ()),
    "MIX": ("MIXED", ()),
    "UNK": ("UNKNOWN", ()),
    "FUTR": ("FUTURE", ()),
    "ERR": ("ERROR", ()),
    "COMP": ("ALLOCATED", ("COMPLETING",)),
    "COMPLETING": ("ALLOCATED", ("COMPLETING",)),
    "DRAIN": ("IDLE", ("DRAIN",)),
    "DRAINED": ("IDLE", ("DRAIN",)),
    "DRNG": ("ALLOCATED", ("DRAIN",)),
    "DRAINING": ("ALLOCATED", ("DRAIN",)),
    "FAIL": ("IDLE", ("FAIL",)),
    "FAILG": ("ALLOCATED", ("FAIL",)),
    "FAILING": ("ALLOCATED", ("FAIL",)),
    "INVAL": ("IDLE", ("INVALID_REG",)),
    "MAINT": ("IDLE", ("MAINTENANCE",)),
    "PLND": ("IDLE", ("PLANNED",)),
    "PLANNED": ("IDLE", ("PLANNED",)),
    "RESV": ("IDLE", ("RESERVED",)),
    "RESERVED": ("IDLE", ("RESERVED",)),
    "NPC": ("IDLE", ("PERFCTRS",)),
    "BLOCK": ("IDLE", ("BLOCKED",)),
    "BLOCKED": ("IDLE", ("BLOCKED",)),
    "BOOT": ("IDLE", ("REBOOT_ISSUED",)),
    "REBOOT": ("IDLE", ("REBOOT_REQUESTED",)),
    "POW_DN": ("IDLE", ("POWERING_DOWN",)),
    "POW_UP": ("IDLE", ("POWERING_UP",)),
    "NO_RESPOND": ("UNKNOWN", ("NOT_RESPONDING",)),
}


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's state in Slurm's eyes.

    Attributes
    ----------
    base
        A word of `NODE_BASES`, or one that this version does not know.
    flags
        Words of `NODE_FLAGS`, or others, in the order in which Slurm gave them.
    """

    base: str
    flags: tuple[str, ...] = ()

    @property
    def responding(self) -> bool:
        """Whether slurmctld hears from the node."""
        return self.base not in {"DOWN", "ERROR", "FUTURE", "UNKNOWN"} and not _SILENT & set(self.flags)

    @property
    def draining(self) -> bool:
        """Whether the node takes no new job."""
        return bool({"DRAIN", "FAIL"} & set(self.flags))

    @property
    def usable(self) -> bool:
        """Whether work can be put on the node. A flag that nobody knows does not make it unusable."""
        bad = {flag for flag in self.flags if flag in NODE_FLAGS} - _HARMLESS
        return self.responding and not bad

    def __str__(self) -> str:
        return "+".join((self.base, *self.flags))


def parse_node_state(text: str) -> NodeState:
    """Read a node state as scontrol (`IDLE+DRAIN`) or sinfo (`idle*`, `drng`) writes it; never raises."""
    words = text.strip().upper().split("+")
    head, suffixes = words[0], []
    while head and head[-1] in _SUFFIXES:
        suffixes.append(_SUFFIXES[head[-1]])
        head = head[:-1]
    base, flags = _COMPOUND.get(head, (head or "UNKNOWN", ()))
    return NodeState(base, tuple(dict.fromkeys((*flags, *words[1:], *reversed(suffixes)))))


@dataclass(frozen=True, slots=True)
class _JobMeaning:
    short: str
    terminal: bool
    sentence: str


_JOB_STATES: dict[str, _JobMeaning] = {
    "BOOT_FAIL": _JobMeaning("BF", True, "The job ended: its nodes could not be booted."),
    "CANCELLED": _JobMeaning("CA", True, "The job was cancelled by its user or an administrator."),
    "COMPLETED": _JobMeaning("CD", True, "The job ended with exit code 0."),
    "COMPLETING": _JobMeaning("CG", False, "The job is ending; some of its processes may be left."),
    "CONFIGURING": _JobMeaning("CF", False, "The job has nodes and waits for them to boot."),
    "DEADLINE": _JobMeaning("DL", True, "The job ended at its deadline."),
    "EXPEDITING": _JobMeaning("EX", False, "The job was requeued and starts again first."),
    "FAILED": _JobMeaning("F", True, "The job ended with another exit code than 0."),
    "LAUNCH_FAILED": _JobMeaning("LF", True, "The job could not be started on its nodes."),
    "NODE_FAIL": _JobMeaning("NF", True, "The job ended because a node of it failed."),
    "OUT_OF_MEMORY": _JobMeaning("OOM", True, "The job ended because it used too much memory."),
    "PENDING": _JobMeaning("PD", False, "The job waits for resources."),
    "POWER_UP_NODE": _JobMeaning("PU", False, "The job's nodes are powered on."),
    "PREEMPTED": _JobMeaning("PR", True, "The job ended to make room for another."),
    "RECONFIG_FAIL": _JobMeaning("RG", True, "The job ended because its nodes could not be configured."),
    "REQUEUED": _JobMeaning("RQ", False, "The job was put back into the queue."),
    "REQUEUE_FED": _JobMeaning("RF", False, "The job is put back into the queue by its federation."),
    "REQUEUE_HOLD": _JobMeaning("RH", False, "The job is put back into the queue and held."),
    "RESIZING": _JobMeaning("RS", False, "The job is about to change size."),
    "RESV_DEL_HOLD": _JobMeaning("RD", False, "The job is held because its reservation was deleted."),
    "REVOKED": _JobMeaning("RV", True, "The job was started by another cluster of the federation."),
    "RUNNING": _JobMeaning("R", False, "The job has nodes and runs."),
    "SIGNALING": _JobMeaning("SI", False, "The job is being signalled."),
    "SPECIAL_EXIT": _JobMeaning("SE", False, "The job was requeued in a special state."),
    "STAGE_OUT": _JobMeaning("SO", False, "The job is copying files out."),
    "STOPPED": _JobMeaning("ST", False, "The job has nodes, and its processes are stopped."),
    "SUSPENDED": _JobMeaning("S", False, "The job is suspended; its nodes are free for others."),
    "TIMEOUT": _JobMeaning("TO", True, "The job ended at its time limit."),
    "UPDATE_DB": _JobMeaning("UD", False, "The job's record is being updated."),
}
_SHORT = {meaning.short: word for word, meaning in _JOB_STATES.items()}
#: Words that come beside a base state.
_JOB_FLAGS = frozenset({"COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "UPDATE_DB"})


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state in Slurm's eyes.

    Attributes
    ----------
    name
        Slurm's word; `UNKNOWN` for one that this version does not know.
    flags
        Words beside it, e.g. `COMPLETING`.
    raw
        What Slurm wrote.
    """

    name: str
    flags: tuple[str, ...] = ()
    raw: str = ""

    @property
    def terminal(self) -> bool:
        """Whether the job has ended for good, and no process of it is left."""
        meaning = _JOB_STATES.get(self.name)
        return meaning is not None and meaning.terminal and "COMPLETING" not in self.flags

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.name == "COMPLETED"

    @property
    def sentence(self) -> str:
        """What the state means."""
        meaning = _JOB_STATES.get(self.name)
        return meaning.sentence if meaning else f"Slurm calls the job's state {self.raw!r}."


def parse_job_state(text: str) -> JobState:
    """Read a job state (`RUNNING`, `CANCELLED by 123`, `RUNNING+COMPLETING`, `CG`); never raises."""
    words = [word for word in re.split(r"[+,]", re.sub(r"\s+BY\s+\S+", "", text.strip().upper())) if word]
    return job_state_of(words, raw=text.strip())


def job_state_of(words: list[str], raw: str = "") -> JobState:
    """The state that a list of words makes, as in the JSON of newer Slurm versions."""
    known = [_SHORT.get(word, word) for word in words]
    bases = [word for word in known if word in _JOB_STATES and word not in _JOB_FLAGS]
    name = bases[0] if bases else next((word for word in known if word in _JOB_STATES), "UNKNOWN")
    flags = tuple(word for word in known if word != name and word in _JOB_STATES)
    return JobState(name, flags, raw or "+".join(words))

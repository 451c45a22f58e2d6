"""What agents and the coordinator tell each other about ranks that are watched from outside."""

from __future__ import annotations

import msgspec

from unicron_hpc.supervisor.rank_messages import RankAddress


class Vital(msgspec.Struct, frozen=True):
    """How a rank looks from outside; travels with every heartbeat.

    Attributes
    ----------
    rank, epoch, iteration
        Which process, and where it says that it is.
    at_work
        It does something of its own just now; its agent judges how long that may take.
    compute
        Seconds of its share of the work (no waiting, no optimizer) in one of its latest iterations; 0 while
        unknown.
    samples
        Iterations behind `compute`.
    """

    rank: RankAddress
    epoch: int
    iteration: int
    at_work: bool
    compute: float = 0.0
    samples: int = 0


class DumpStacks(msgspec.Struct, frozen=True, tag=True):
    """Take the stacks of all ranks of a task on this node, before anything else is done to them."""

    task: str
    epoch: int


class RankStacks(msgspec.Struct, frozen=True):
    """Where the threads of one rank were.

    Attributes
    ----------
    state
        What the system says about its threads, one line.
    stacks
        What the process wrote, cut to some kilobytes a node; empty if it could not (the state says why).
    file
        Name of the file in `logs/` that has all of it.
    """

    rank: RankAddress
    pid: int
    state: str
    stacks: str
    file: str


class StacksDumped(msgspec.Struct, frozen=True, tag=True):
    """The answer to `DumpStacks`."""

    task: str
    epoch: int
    ranks: tuple[RankStacks, ...]

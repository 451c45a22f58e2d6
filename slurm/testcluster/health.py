"""Waiting for Slurm: until the controller answers and nodes are in service, with progress and a bound."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testcluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command gave back."""

    code: int
    out: str
    err: str


#: Runs one of Slurm's commands as the administrator.
Run = Callable[[Sequence[str]], Answer]
_IN_SERVICE = frozenset({"IDLE", "MIXED", "ALLOCATED"})


def node_states(run: Run) -> dict[str, str]:
    """Return Slurm's state per node in capitals, `*` appended where it is silent; {} without controller."""
    answer = run(["sinfo", "--noheader", "--Node", "--format=%N %T"])
    if answer.code != 0:
        return {}
    pairs = (line.split() for line in answer.out.splitlines())
    return {pair[0]: pair[1].upper() for pair in pairs if len(pair) == 2}


def in_service(state: str) -> bool:
    """Tell whether a node with this state answers and takes jobs."""
    return state in _IN_SERVICE


def wait_in_service(
    run: Run, nodes: Sequence[str], *, seconds: float, say: Callable[[str], None], alive: Callable[[], None]
) -> None:
    """Wait until all `nodes` answer and take jobs.

    Parameters
    ----------
    run
        Runs a command as administrator.
    nodes
        Names of the nodes.
    seconds
        The most to wait.
    say
        Receives a line whenever the count changes.
    alive
        Raises an error that quotes the log when a daemon has ended; called on every turn.
    """
    deadline = time.monotonic() + seconds
    told = -1
    while True:
        alive()
        states = node_states(run)
        ready = sum(in_service(states.get(node, "")) for node in nodes)
        if ready != told:
            say(f"{ready} of {len(nodes)} nodes in service")
            told = ready
        if ready == len(nodes):
            return
        if time.monotonic() > deadline:
            rest = ", ".join(
                f"{node} {states.get(node, 'unknown')}"
                for node in nodes
                if not in_service(states.get(node, ""))
            )
            raise ClusterError(f"not in service after {seconds:g} s: {rest}")
        time.sleep(0.1)


def wait_registered(run: Run, node: str, *, since: float, seconds: float, alive: Callable[[], None]) -> None:
    """Wait until the controller has heard from a slurmd that started at `since` (unix seconds) or later.

    Without this a node that was killed and restored before anybody noticed would look as if it had been back
    before its slurmd was. `run` must run with TZ=UTC.
    """
    wanted = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since))
    deadline = time.monotonic() + seconds
    while True:
        alive()
        match = re.search(r"SlurmdStartTime=(\S+)", run(["scontrol", "show", "node", node]).out)
        if match and match[1][:1].isdigit() and match[1] >= wanted:
            return
        if time.monotonic() > deadline:
            told = match[1] if match else "never"
            raise ClusterError(
                f"did not register within {seconds:g} s (last slurmd start: {told})", where=node
            )
        time.sleep(0.1)


def return_to_service(
    run: Run, node: str, *, seconds: float, say: Callable[[str], None], alive: Callable[[], None]
) -> None:
    """Have a node that is back take jobs again, as an administrator would: State=RESUME once it answers."""
    deadline = time.monotonic() + seconds
    while True:
        alive()
        state = node_states(run).get(node, "")
        if in_service(state):
            say(f"{node} is {state}")
            return
        refusal = ""
        if state and not state.endswith("*"):
            answer = run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
            refusal = answer.err.strip()
        if time.monotonic() > deadline:
            raise ClusterError(
                f"still {state or 'unknown to Slurm'} after {seconds:g} s. {refusal}".strip(), where=node
            )
        time.sleep(0.2)

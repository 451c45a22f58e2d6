"""Events of the journal as sentences for people; what a sentence leaves out is in the journal itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from unicron_hpc.report.journal import NOT_AS_EXPECTED

Event = Mapping[str, Any]

#: What each severity has done about it.
ACTIONS: Mapping[str, str] = {
    "SEV3": "try again in place",
    "SEV2": "start a new process",
    "SEV1": "go on without the node",
    "PROGRAM": "end the run: no retry helps against the program's own fault",
    "INFO": "nothing to be done",
}
#: What each severity says of what broke.
SEVERITIES: Mapping[str, str] = {
    "SEV3": "SEV3, worth another try in place",
    "SEV2": "SEV2, the process must be replaced",
    "SEV1": "SEV1, the node cannot be used",
    "PROGRAM": "the program's own fault",
    "INFO": "nobody's fault",
}
_REASONS = {
    "start": "the first layout",
    "same seats": "the same layout",
    "spare": "the same layout with a spare in the lost node's place",
    "redistributed": "a new layout over the nodes that are left",
}
_SOURCES = {
    "peer": "from peers",
    "memory": "from a neighbour's memory",
    "disk": "from a checkpoint",
    "seed": "of initial values",
}
_LONGEST_EVIDENCE = 240


def sentence(event: Event) -> str:
    """What happened, in a sentence; of an event without one, its fields."""
    tell = _SENTENCES.get(event["type"])
    try:
        return tell(event) if tell else _fields(event)
    except NOT_AS_EXPECTED:
        return _fields(event)  # of another version, or damaged: shown as it is


def seconds(value: float) -> str:
    """A duration: `0.28 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if not math.isfinite(value):
        return "an unknown time"
    if value < 10:
        return f"{value:.2g} s" if value < 0.01 else f"{value:.2f} s"
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: float) -> str:
    """A number of bytes: `2.1 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def place(event: Event) -> str:
    """Where an event was: `rank 3 on n2`, `n2`, or the task."""
    rank, node = event.get("rank"), event.get("node")
    if rank is not None and node:
        return f"rank {rank} on {node}"
    if node:
        return f"a process on {node}" if event.get("pid") else str(node)
    return f"task {event['task']}" if event.get("task") else "the job"


def ranks_named(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 1 and 2`."""
    found = sorted(ranks)
    return f"rank{'s' if len(found) > 1 else ''} {names(found)}"


def names(items: Iterable[Any]) -> str:
    """`n1, n2 and n3`."""
    words = [str(item) for item in items]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"


def guilty(ranks: Iterable[int], nodes: Iterable[str]) -> str:
    """`rank 3 on n2`, `n2`, `ranks 1 and 2`; empty for nobody."""
    ranks, nodes = list(ranks), list(nodes)
    known = (ranks_named(ranks) if ranks else "", names(nodes) if nodes else "")
    return " on ".join(filter(None, known))


def first_words(event: Event) -> str:
    """The line of a fault's evidence that says most."""
    evidence = str(event.get("evidence") or "")
    # How a process ended comes first, what its log had last is behind; a traceback's last line is its error.
    ended = event.get("method") == "process supervision"
    return brief(evidence.strip().partition("\n")[0] if ended else evidence)


def brief(evidence: str) -> str:
    """The last line of a longer text that says something; of a Python warning, the warning itself."""
    lines = [line.strip() for line in evidence.splitlines()]
    lines = [line for line in lines if line and not line.startswith("warnings.warn(")]
    said = lines[-1] if lines else ""
    return said if len(said) <= _LONGEST_EVIDENCE else f"{said[:_LONGEST_EVIDENCE]}..."


def _job_started(event: Event) -> str:
    nodes, active = event["nodes"], event["active"]
    spares = f"; spares: {names(nodes[active:])}" if nodes[active:] else ""
    return f"job {event.get('shown_id') or event['job_id']} begins: {names(nodes[:active])} train{spares}"


def _rank_exited(event: Event) -> str:
    status = event["status"]
    how = "for a reason unknown" if status is None else f"with code {status}"
    if status is not None and status < 0:
        how = f"by signal {-status}"
    return f"{place(event)} ended {how} (process {event['pid']})"


def _fault(event: Event) -> str:
    action = ACTIONS.get(event["severity"], "")
    told = f"incident {event['incident']}: {event['error']}, {place(event)}"
    return f"{told}; noticed by {event['method']}; {event['severity']}: {action}"


def _verdict(event: Event) -> str:
    again = " now" if event.get("corrects") else ""
    who = guilty(event.get("suspects") or (), event.get("nodes") or ()) or "nobody is named"
    others = sorted({*(event.get("victims") or ()), *(event.get("collateral") or ())})
    only = f"; {ranks_named(others)} only suffered from it" if others else ""
    return f"incident {event['incident']}: the cause is{again} {event['error']}, {who}{only}"


def action(event: Event) -> str:
    """What was decided, and about whom: `rank 3 on n2: a new process`."""
    return f"{place(event)}: {event['action']}" if event.get("node") else str(event["action"])


def _action(event: Event) -> str:
    rule = f" (rule: {event['rule']})" if event.get("rule") else ""
    return f"incident {event['incident']}: {action(event)}{rule}"


def _plan(event: Event) -> str:
    ready = "planned ahead" if event["from_table"] else f"planned in {seconds(event['seconds'])}"
    why = _REASONS.get(event["reason"], event["reason"])
    return f"task {event['task']}: {why} on {names(event['nodes'])}, {ready}"


def _transition(event: Event) -> str:
    moved = [
        f"{size(event['state_sources'][source])} {words}"
        for source, words in _SOURCES.items()
        if event["state_sources"].get(source)
    ]
    state = f"; state: {names(moved)}" if moved else "; no state had to move"
    if event["state_sources"].get("seed") and event.get("incident") is not None:
        state += "; there was no checkpoint: training starts over"
    return f"task {event['task']} computes in epoch {event['epoch']} after {seconds(event['seconds'])}{state}"


def _closed(event: Event) -> str:
    return (
        f"incident {event['incident']} is over: iteration {event['iteration']} of task {event['task']} is"
        f" committed, {seconds(event['seconds'])} after the first sign"
    )


def _drain_result(event: Event) -> str:
    if event.get("drained") is False:
        return f"{event['node']} is not drained: {event['message']}"
    return f"drain of {event['node']}: {event['message']}"


def _given_back(event: Event) -> str:
    if event["done"]:
        return f"{event['node']} is given back to Slurm before the job's end"
    return f"{event['node']} stays with the job until its end: {event['message']}"


def _finished(event: Event) -> str:
    cause = f": {event['cause']}" if event.get("cause") else ""
    return f"the job has {event['state']}{cause}" if event["state"] != "cancelled" else f"cancelled{cause}"


def _plans_ready(event: Event) -> str:
    return f"{event['plans']} plans are ready for what may come next"


def _slow_node(event: Event) -> str:
    return f"{event['node']} takes {float(event['factor']):.2f} x the time that others take"


def _reused(event: Event) -> str:
    kept, redone = event["kept"], event["redone"]
    whole = f"iteration {event['iteration']} of task {event['task']} goes on where it broke off"
    return f"{whole}: {kept} of {kept + redone} micro-batches are kept"


def _stop_requested(event: Event) -> str:
    if not event["tasks"]:
        return f"the run is asked to end: {event['reason']}"
    saved = f"{names(event['tasks'])} saved first, in {seconds(event['seconds'])} at most"
    return f"the run is asked to end: {event['reason']}; {saved}"


def _share_anew(event: Event) -> str:
    before, after = seconds(event["seconds_now"]), seconds(event["seconds_then"])
    whose = f"the work of task {event['task']} is shared anew, {event['node']} has changed speed"
    return f"{whose}: {after} an iteration, not {before}"


def _stacks(event: Event) -> str:
    files = names(sorted({f"logs/{rank['file']}" for rank in event["ranks"]}))
    return f"stacks of task {event['task']}'s processes on {event['node']} were written to {files}"


def _node_checked(event: Event) -> str:
    found = "; ".join(
        f"{' or '.join(suspect['nodes'])}: {suspect['error']} ({brief(suspect['evidence'])})"
        for suspect in event["suspects"]
    )
    nodes = names(event["product_seconds"])
    return f"self-test of {nodes} in {seconds(event['seconds'])}: {found or 'nobody stands out'}"


def _bad_nodes_last(event: Event) -> str:
    known = names(f"{node} ({why})" for node, why in event["nodes"].items())
    last = f"found bad before, and used only when no other node is left: {known}"
    return f"{last}; {names(event['active'])} must train from the start" if event["active"] else last


def _agent_lost(event: Event) -> str:
    return f"{event['node']} is out of the job: {event['reason']}"


_SENTENCES: Mapping[str, Callable[[Event], str]] = {
    "action_chosen": _action,
    "agent_joined": lambda e: f"the agent of {e['node']} is up ({e['role']})",
    "agent_lost": _agent_lost,
    "bad_nodes_last": _bad_nodes_last,
    "checkpoint_failed": lambda e: f"the checkpoint of iteration {e['iteration']} could not be written",
    "checkpoint_saved": lambda e: f"checkpoint of iteration {e['iteration']} saved, {size(e['bytes'])}",
    "checkpoint_skipped": lambda e: f"checkpoint {e['path']} is passed over: {e['reason']}",
    "coordinator_elected": lambda e: f"{e['node']} coordinates (term {e['term']})",
    "drain_requested": lambda e: f"Slurm is asked to drain {e['node']}: {e['reason']}",
    "drain_result": _drain_result,
    "drain_withheld": lambda e: f"{e['node']} is not drained: {e['reason']}",
    "fault_detected": _fault,
    "incident_closed": _closed,
    "iteration_reused": _reused,
    "job_finished": _finished,
    "job_requeued": lambda e: f"Slurm has put the job back into its queue; {'; '.join(e['notes'])}",
    "job_started": _job_started,
    "node_given_back": _given_back,
    "node_checked": _node_checked,
    "node_warning": lambda e: f"{e['node']}: {e['error']}: {brief(e['evidence'])}",
    "plan_chosen": _plan,
    "plans_ready": _plans_ready,
    "rank_exited": _rank_exited,
    "rank_started": lambda e: f"process {e['pid']} of task {e['task']} runs on {e['node']}",
    "share_anew": _share_anew,
    "slow_node": _slow_node,
    "slow_node_recovered": lambda e: f"{e['node']} is as fast as the others again",
    "stacks_dumped": _stacks,
    "state_lost": lambda e: (
        f"no survivor has {names(e['units'])} of task {e['task']} any more: it must be read from a checkpoint"
    ),
    "stop_requested": _stop_requested,
    "table_miss": lambda e: f"{e['event']} had no plan ready; made in {seconds(e['seconds'])}",
    "task_finished": lambda e: f"task {e['task']} is finished at iteration {e['iteration']}",
    "task_waiting": lambda e: f"no node is left for task {e['task']}; it waits",
    "transition_finished": _transition,
    "transition_started": lambda e: f"task {e['task']} moves to epoch {e['epoch']}",
    "verdict": _verdict,
}
#: Events with a sentence of their own.
TOLD = frozenset(_SENTENCES)


def _fields(event: Event) -> str:
    shown = (
        f"{key}={_short(value)}"
        for key, value in event.items()
        if key not in ("time", "type", "epoch") and value not in (None, "")
    )
    return f"{event['type']} {' '.join(shown)}".rstrip()


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{key}:{inner}" for key, inner in value.items())
    return str(value)

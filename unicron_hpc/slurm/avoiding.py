"""Keeping a job away from nodes that were found bad: when it is submitted, and when Slurm puts it back.

A requeued job is the old submission again. Its list of excluded nodes can be changed only while it does not
run: from the moment of the requeue on, when its batch script still has `KillWait` to live. So it does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence

from unicron_hpc.config import Settings
from unicron_hpc.errors import SlurmError
from unicron_hpc.slurm import bad_nodes, commands, hostlists, parsing, queries
from unicron_hpc.slurm.bad_nodes import BadNode

_EXCLUDED = re.compile(r"\sExcNodeList=(\S+)")
#: Longest wait for Slurm at the end of an attempt, in seconds: little time is left.
_HURRY = 5.0


def known_bad(
    settings: Settings, among: Collection[str] | None = None, env: Mapping[str, str] | None = None
) -> list[BadNode]:
    """Nodes that earlier jobs found bad, and that nobody has seen to since; the latest first.

    Parameters
    ----------
    among
        Only these are asked for; all when None.
    env
        Slurm's commands run in it; ours when None.
    """
    limit = settings.recovery.exclude_for
    known = [
        entry
        for entry in bad_nodes.read(settings.run_dir)
        if limit and (among is None or entry.node in among)
    ]
    if not known:
        return []
    try:
        records = queries.node_records([entry.node for entry in known], env=env)
    except SlurmError:
        records = None
    return bad_nodes.still_bad(known, records, time.time(), limit)


def exclusion(
    settings: Settings, sizes: Mapping[str, int], default: str, env: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How a submission leaves bad nodes out.

    Parameters
    ----------
    sizes, default
        Nodes of each partition, and the partition of jobs that name none.
    env
        Slurm's commands run in it.

    Returns
    -------
    tuple
        sbatch's option, if there is any such node, and what the user should know.
    """
    excluded = _own(settings)
    out, notes = _choose(settings, sizes, default, excluded, known_bad(settings, env=env))
    return (f"--exclude={hostlists.fold([*excluded, *out])}",) if out else (), notes


def after_requeue(settings: Settings, job_id: str) -> tuple[str, ...]:
    """Have a job that Slurm has just put back into its queue leave bad nodes out.

    For the job's batch script, when its agents have ended. Slurm refuses the change for a job that just ends.

    Returns
    -------
    tuple
        What was done, in sentences; empty where there was nothing to do, or Slurm did not take it: then the
        next attempt uses such nodes last.
    """
    listed = {entry.node for entry in bad_nodes.read(settings.run_dir)}
    if not listed:
        return ()
    try:
        shown = commands.run(["scontrol", "show", "job", "--oneliner", job_id], timeout=_HURRY)
        records = parsing.parse_show_job(shown.stdout)
        if job_id not in records or records[job_id].state.name == "RUNNING":
            return ()  # it ends by itself
        # Where the number is an array's, too, all its tasks are shown.
        own_line = rf"^JobId={re.escape(job_id)}\s.*"
        match = _EXCLUDED.search("\n".join(re.findall(own_line, shown.stdout, re.MULTILINE)))
        excluded = hostlists.expand(match[1]) if match and match[1] != "(null)" else ()
        # What we left out before is judged anew; what others have added, and the user's own, stays.
        own = _own(settings)
        kept = [node for node in excluded if node not in listed or node in own]
        out, notes = _choose(
            settings, queries.partition_sizes(), queries.default_partition(), kept, known_bad(settings)
        )
        nodes = hostlists.fold([*kept, *out]) if kept or out else ""
        told = commands.run(["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={nodes}"], timeout=_HURRY)
    except SlurmError:
        return ()
    return notes if told.code == 0 else ()


def bad_ones_last(nodes: Sequence[str], bad: Sequence[BadNode]) -> tuple[str, ...]:
    """Nodes in their order, those that are bad behind the others: the last of them are spares."""
    names = {entry.node for entry in bad}
    return (*(node for node in nodes if node not in names), *(node for node in nodes if node in names))


def _own(settings: Settings) -> tuple[str, ...]:
    """What the user excludes."""
    return hostlists.expand(settings.slurm.exclude) if settings.slurm.exclude else ()


def _choose(
    settings: Settings,
    sizes: Mapping[str, int],
    default: str,
    excluded: Sequence[str],
    bad: Sequence[BadNode],
) -> tuple[list[str], tuple[str, ...]]:
    """Which bad nodes to leave out beside those that are excluded, and what to say of it."""
    bad = [entry for entry in bad if entry.node not in excluded]
    if not bad:
        return [], ()
    slurm = settings.slurm
    names = (slurm.partition or default).split(",")
    unlimited = slurm.total_nodes + len(excluded) + len(bad)
    room = max((sizes[name] for name in names if name in sizes), default=unlimited)
    wanted = hostlists.expand(slurm.nodelist) if slurm.nodelist else ()
    out, used = bad_nodes.to_leave_out(bad, wanted, room - slurm.total_nodes - len(excluded))
    why = {entry.node: entry.why for entry in bad}
    where = f"see {settings.run_dir / bad_nodes.FILE}"
    notes = (
        f"{text}: {', '.join(f'{node} ({why[node]})' for node in nodes)}; {where}"
        for text, nodes in (
            ("bad nodes are left out", out),
            ("bad nodes may be used, since the job would not fit without them or names them", used),
        )
        if nodes
    )
    return out, tuple(notes)

"""`unicron drill list` and `unicron drill run NAME JOB`."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from unicron_hpc.cli.drill_target import Target, choose
from unicron_hpc.cli.drill_watch import (
    Watched,
    failures,
    wait_injected,
    wait_iteration,
    wait_outcome,
)
from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.cli.find_run import find_run_folder
from unicron_hpc.config import load_resolved
from unicron_hpc.detect.exceptions import explain_exception
from unicron_hpc.detect.severity import Severity
from unicron_hpc.detect.site_rules import use_rules_of
from unicron_hpc.errors import ConfigError, UnicronError
from unicron_hpc.report.drill_outcome import Culprit, Outcome, named_rightly, ranks_of
from unicron_hpc.report.journal import EVENTS, read_events
from unicron_hpc.report.status import status_of
from unicron_hpc.slurm.run_folder import RULES
from unicron_hpc.supervisor import drill_client
from unicron_hpc.supervisor.drill_kinds import KINDS, Expected, Kind, Site
from unicron_hpc.supervisor.messages import Drill

#: How long a command of the site may take, in seconds.
_COMMAND_LIMIT = 120.0


@click.group("drill")
def command() -> None:
    """Make something fail on purpose in a running job, and watch it recover.

    \b
      unicron drill list
      unicron drill run kill 4711
      unicron drill run stop-rank --rank 2 --yes --json 4711
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="A list of objects, for programs.")
@ends_with_errors
def list_drills(as_json: bool) -> None:
    """List the drills: what each does, and what must come of it."""
    if as_json:
        rows = [
            {"name": name, "sentence": kind.sentence, "expected": kind.expected.value}
            for name, kind in KINDS.items()
        ]
        click.echo(json.dumps(rows))
        return
    for name, kind in KINDS.items():
        click.echo(f"{name:18} {kind.sentence}\n{'':18} -> {kind.expected.value}")


@command.command("run")
@click.argument("name", type=click.Choice(list(KINDS)), metavar="NAME")
@click.argument("job")
@click.option("--node", help="The node to make fail; default: one that trains and does not coordinate.")
@click.option("--rank", type=click.IntRange(0), help="The rank to make fail; default: one on such a node.")
@click.option("--task", help="The task whose rank it is, where the job has several.")
@click.option("--at-iteration", type=click.IntRange(1), default=None, help="When; default: at once.")
@click.option(
    "--seconds", type=click.FloatRange(0, 3600), help="How long it lasts, where it has an end (0: no end)."
)
@click.option("--error", "error", help='exceptions: what is raised, as "Class: text".')
@click.option(
    "--cgroup",
    type=click.Path(path_type=Path),
    help="oom: a memory cgroup with a limit: the rank's own, or one into which its owner may move it.",
)
@click.option("--leave", type=click.IntRange(0), default=0, help="disk-full: bytes to leave free.")
@click.option(
    "--with", "with_", metavar="COMMAND", help="node-cut, link-loss: the site's command; {node} is the node."
)
@click.option("--undo", metavar="COMMAND", help="The site's command that takes it back after --seconds.")
@click.option("--wait", "limit", type=click.FloatRange(1), default=180.0, help="Longest wait, in seconds.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; words go to stderr.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where run folders lie, for a job that Slurm has forgotten.",
)
@ends_with_errors
def run(
    name: str,
    job: str,
    node: str | None,
    rank: int | None,
    task: str | None,
    at_iteration: int | None,
    seconds: float | None,
    error: str | None,
    cgroup: Path | None,
    leave: int,
    with_: str | None,
    undo: str | None,
    limit: float,
    yes: bool,
    as_json: bool,
    run_dir: Path | None,
) -> None:
    """Make NAME happen in JOB (a job id, or a run folder), and tell what came of it.

    \b
    Exit codes:
      0  the culprit was named, nobody else was blamed or drained, and training went on
         (for faults of the program: the run ended FAILED and says why)
      1  not so, or the drill could not be made; the words say what is wrong
      2  wrong usage; nothing was done
    """
    kind = KINDS[name]
    _check(name, kind, error=error, cgroup=cgroup, leave=leave, with_=with_, undo=undo)
    lasting = kind.seconds if seconds is None else seconds
    if undo and not lasting:
        raise ConfigError(
            "--undo needs --seconds: it would take everything back at once",
            hint="Longer than recovery.node_timeout.",
        )
    folder = find_run_folder(job, run_dir)
    recovery = load_resolved(folder / "train.yaml").recovery
    if not recovery.drills:
        raise ConfigError("recovery.drills is false: this job forbids drills", where=str(folder))
    use_rules_of(folder / RULES)
    events = list(read_events(folder / EVENTS))
    status = status_of(events, ())
    if status["state"] != "RUNNING":
        raise UnicronError(f"the job is {status['state']}, not RUNNING", where=str(folder))
    nodes = [known["name"] for known in status["nodes"] if known["role"] != "lost"]
    target = choose(
        name, kind, ranks_of(events), status["coordinator"], nodes, node=node, rank=rank, task=task
    )
    drill = Watched(
        run_folder=folder,
        order=secrets.token_hex(6),
        culprit=Culprit(target.node, target.rank),
        expected=_expected(kind, error),
        since=len(events),
        seconds=lasting if kind.seconds or kind.site is Site.CLUSTER else 0.0,
        limit=limit,
        settle=recovery.node_timeout + 1.0,
    )
    say = _Sayer(as_json)
    say(f"drill {name} ({drill.order}) on {drill.culprit} of job {status['job_id']}: {kind.sentence}")
    say(f"expected    {drill.expected.value}")
    if not yes:
        _confirm()
    if at_iteration and kind.site is not Site.RANK:
        wait_iteration(folder, at_iteration - 1, limit)
    if kind.site is Site.CLUSTER:
        injected = _by_command(with_ or "", target.node)
    else:
        text = str(cgroup) if cgroup else (error or "")
        at = at_iteration or 0
        drill_client.order(folder, target.node, _message(drill.order, name, target, at, lasting, text, leave))
        injected = wait_injected(drill).time
    seen = _follow(drill, injected, undo)
    wrong = failures(drill, seen)
    _tell(say, drill, seen, wrong)
    if as_json:
        click.echo(json.dumps(_as_json(name, str(status["job_id"]), drill, seen, wrong)))
    sys.exit(1 if wrong else 0)


def _check(
    name: str,
    kind: Kind,
    *,
    error: str | None,
    cgroup: Path | None,
    leave: int,
    with_: str | None,
    undo: str | None,
) -> None:
    """Refuse options that this drill does not know, and miss those that it needs."""
    for option, given, belongs in (
        ("--error", error, name.startswith("exception-")),
        ("--cgroup", cgroup, name == "oom"),
        ("--leave", leave, name == "disk-full"),
        ("--with", with_, kind.site is Site.CLUSTER),
        ("--undo", undo, kind.site is Site.CLUSTER),
    ):
        if given and not belongs:
            raise ConfigError(f"{option} means nothing to the drill {name}", hint="See `unicron drill list`.")
    if kind.site is Site.CLUSTER and not with_:
        raise ConfigError(
            f"the drill {name} needs --with: no job can do that to its node",
            hint='Say how: --with "ssh {node} sudo ip link set ib0 down"',
        )


def _expected(kind: Kind, error: str | None) -> Expected:
    """What must come of it; of an exception that is named, what the table of errors says."""
    if not error:
        return kind.expected
    severity = explain_exception(error).severity
    if severity is Severity.PROGRAM:
        return Expected.JOB_FAILS
    return Expected.NODE_NAMED if severity is Severity.SEV1 else Expected.RANK_NAMED


def _message(order: str, name: str, target: Target, at: int, seconds: float, text: str, amount: int) -> Drill:
    return Drill(
        order=order,
        name=name,
        task=target.task,
        slot=target.slot,
        pid=target.pid,
        iteration=at,
        seconds=seconds,
        text=text,
        amount=amount,
    )


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to ask", hint="Give --yes.")
    click.confirm("Make it fail?", abort=True, err=True)


def _by_command(text: str, node: str) -> float:
    """Run a command of the site; return the unix time at which it was begun."""
    words = [word.replace("{node}", node) for word in shlex.split(text)]
    begun = time.time()
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False, timeout=_COMMAND_LIMIT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnicronError(f"cannot be run: {error}", where=text) from error
    if done.returncode != 0:
        raise UnicronError(f"ended with exit code {done.returncode}", where=shlex.join(words))
    return begun


def _follow(drill: Watched, injected: float, undo: str | None) -> Outcome:
    if undo:
        try:
            time.sleep(max(0.0, injected + drill.seconds - time.time()))
        finally:  # also if we are interrupted: nobody else would
            _by_command(undo, drill.culprit.node)
    return wait_outcome(drill, injected)


class _Sayer:
    """Words for people: on stdout, or on stderr where stdout is for programs."""

    def __init__(self, to_stderr: bool) -> None:
        self._to_stderr = to_stderr

    def __call__(self, line: str) -> None:
        click.echo(line, err=self._to_stderr)


def _tell(say: _Sayer, drill: Watched, seen: Outcome, wrong: Sequence[str]) -> None:
    clock = time.strftime("%H:%M:%S", time.localtime(seen.injected))
    say(f"made        {clock}.{int(seen.injected * 1000) % 1000:03d}")
    if seen.detected is None:
        say("detected    no fault")
    else:
        say(f"detected    after {seen.detected:.3f} s: {seen.error} ({seen.method})")
    blamed = ", ".join(str(Culprit(node, rank)) for node, rank in seen.named) or "nobody"
    say(f"blamed      {blamed}")
    if seen.warned:
        say(f"slow        {', '.join(f'{node}: {factor:.2f}' for node, factor in seen.warned.items())}")
    say(f"action      {seen.action}")
    if seen.recovered is not None:
        say(f"recovered   after {seen.recovered:.3f} s, with iteration {seen.iteration}")
    if seen.state:
        say(f"the run     {seen.state}: {seen.cause}".rstrip(": "))
    for line in wrong:
        say(f"WRONG       {line}")
    say("passed" if not wrong else "FAILED")


def _as_json(name: str, job_id: str, drill: Watched, seen: Outcome, wrong: Sequence[str]) -> dict[str, Any]:
    return {
        "drill": name,
        "order": drill.order,
        "job_id": job_id,
        "node": drill.culprit.node,
        "rank": drill.culprit.rank,
        "expected": drill.expected.value,
        **seen.as_json(),
        "right": named_rightly(seen, drill.culprit),
        "wrong": list(wrong),
        "passed": not wrong,
    }

"""`unicron explain`: what went wrong, from any training's logs."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import click

from unicron_hpc.cli.explain_output import finding_as_data, show_story, show_verdict
from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.cli.log_files import LogError, doubt, lines, open_log
from unicron_hpc.detect.attribution import judge
from unicron_hpc.detect.log_places import place_in_name
from unicron_hpc.detect.log_scan import LogFinding, LogScan
from unicron_hpc.detect.log_verdict import tell
from unicron_hpc.detect.reports import Structure, Verdict
from unicron_hpc.detect.sequence import read_report, read_structure, verdict_as_data
from unicron_hpc.detect.site_rules import read_rules
from unicron_hpc.detect.table import Table, default_table
from unicron_hpc.errors import UnicronError

_HELP = """Say what went wrong, from the logs of a training: ours or any other's, of ranks, launchers, Slurm
or a node's kernel. `-` is standard input.

For every error: the line, what it is, how severe (SEV1 the node, SEV2 the process, SEV3 try again,
PROGRAM the program itself, INFO nothing failed), where the blame lies, and what to do. Of several ranks'
logs the first cause is told apart from its consequences; where there is none, who lags or says nothing while
the others wait is named. Times, ranks and hosts are read from the lines and from the files' names. Files may
be packed (gzip, bzip2, xz) and of any size; zstd, lz4, zip and UTF-16 are not read.

\b
Examples:
  unicron explain slurm-4711.out                   one log
  unicron explain logs/rank-*.log                  which rank was first?
  dmesg | unicron explain -                        a node's kernel log
  unicron explain --json run.log | jq '.[] | select(.first_cause)'
  unicron explain --rules site-rules.yaml run.log  with the site's own rules
  unicron explain --sequence reports.json          who is guilty, from a list of reports

\b
A sequence is a JSON list of reports, e.g.
  [{"t": 0.0, "rank": 5, "event": "silent"},
   {"t": 600.0, "rank": 1, "event": "nccl_timeout"},
   {"t": 601.0, "rank": 0, "event": "exit", "signal": 15}]
with `exc` (an exception's text), `code`, `signal`, `xid`, `node`, `arrival` (when it was heard) and `seq`
where known; or {"reports": [...], "groups": [[0, 1], [2, 3]], "nodes": {"0": "n1"}}.

\b
The verdict names the suspects (of several nodes lost at once all their ranks), the victims that waited for
them or lost them, and all that failed in consequence. With --json: `suspect`, `victims` and `collateral` are
lists of ranks, `suspect_nodes` has all nodes to blame, `suspect_node` the first of them or null.

\b
Exit code: 0, also when errors were found; 1 when a log cannot be read; 2 for a wrong option or rule.
docs/errors.md lists all errors that are known."""


@click.command("explain", help=_HELP)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="A list of findings, for programs.")
@click.option(
    "--rules",
    "rules_file",
    type=click.Path(path_type=Path),
    help="The site's own rules, before the built-in ones (docs/errors.md).",
)
@click.option(
    "--sequence", metavar="FILE.json", help="Judge a list of reports instead of logs; `-` is stdin."
)
@ends_with_errors
def command(files: tuple[str, ...], as_json: bool, rules_file: Path | None, sequence: str | None) -> None:
    table = default_table()
    if rules_file is not None:
        table = table.with_rules(read_rules(rules_file))
    if sequence is not None:
        if files:
            raise click.UsageError("--sequence takes the place of the files.")
        verdict = judge_file(sequence, table)
        click.echo(json.dumps(verdict_as_data(verdict)) if as_json else show_verdict(verdict))
        return
    if not files:
        raise click.UsageError("Name at least one file, or `-` for standard input.")
    findings: list[LogFinding] = []
    read: list[int] = []
    failed = None
    for name in files:
        try:
            findings += scan(name, table)
            rank = place_in_name(name).rank
            read += [] if rank is None else [rank]
        except LogError as error:
            # What the other logs say is worth telling all the same.
            click.echo(str(error), err=True)
            failed = error
    story = tell(findings, read)
    if as_json:
        click.echo(json.dumps([finding_as_data(story, k) for k in range(len(story.findings))], indent=1))
    elif findings or failed is None:
        click.echo(show_story(story, len(files)))
    if failed is not None:
        raise SystemExit(failed.exit_code)


def scan(name: str, table: Table) -> list[LogFinding]:
    """The findings of one log.

    Raises
    ------
    LogError
        When it cannot be read to its end.
    """
    shown = "standard input" if name == "-" else name
    written = _written(name)
    year = dt.datetime.fromtimestamp(written, dt.UTC).year
    # Its clock may be of another zone.
    scanner = LogScan(shown, place_in_name(name), year, written + 86400.0, table)
    first = b""
    with open_log(name) as file:
        for number, raw in lines(file):
            first = first or raw
            scanner.feed(raw, number)
    if words := doubt(first):
        click.echo(f"{shown}: {words}", err=True)
    found = scanner.finish()
    if scanner.left_out:
        click.echo(f"{shown}: {scanner.left_out} more findings were left out", err=True)
    return found


def judge_file(name: str, table: Table) -> Verdict:
    """The verdict on a file of reports.

    Raises
    ------
    UnicronError
        For a file that cannot be read or holds something else.
    """
    with open_log(name, "unicron explain --sequence -") as file:
        text = file.read()
    where = "standard input" if name == "-" else name
    hint = 'write [{"t": 0.0, "rank": 1, "event": "silent"}, ...]'
    if not text.strip():
        raise UnicronError("is empty", where=where, hint=hint)
    try:
        data: Any = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and error.lineno > 1:
            hint += f"; for one report a line use: jq -s . {name} | unicron explain --sequence -"
        raise UnicronError(f"is no JSON: {error}", where=where, hint=hint) from error
    except UnicodeDecodeError as error:
        raise UnicronError(
            f"is no text: {error.reason}, byte {error.start}", where=where, hint=hint
        ) from error
    except (ValueError, RecursionError) as error:
        raise UnicronError("is no JSON that can be meant", where=where, hint=hint) from error
    structure = Structure()
    if isinstance(data, dict):
        try:
            structure = read_structure(data)
        except UnicronError as error:
            raise UnicronError(error.message, where=where, hint=error.hint) from error
        data = data.get("reports")
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        raise UnicronError("holds no list of reports", where=where, hint=hint)
    reports = []
    for k, entry in enumerate(data):
        try:
            reports.append(read_report(entry, table))
        except UnicronError as error:
            raise UnicronError(error.message, where=f"{where}: report {k}", hint=error.hint) from error
    return judge(reports, structure)


def _written(name: str) -> float:
    """Unix time at which a log was written last: syslog's times have no year."""
    now = dt.datetime.now(dt.UTC).timestamp()
    try:
        return now if name == "-" else min(now, os.stat(name).st_mtime)
    except OSError:
        return now

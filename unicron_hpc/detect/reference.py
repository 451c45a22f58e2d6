"""docs/errors.md, made from the error table: `python -m unicron_hpc.detect.reference > docs/errors.md`."""

from __future__ import annotations

from collections.abc import Iterator

from unicron_hpc.detect.rule import Rule, Scope
from unicron_hpc.detect.table import families

_INTRO = """\
# Errors

Made from `unicron_hpc/detect/rows/*.yaml` by `python -m unicron_hpc.detect.reference > docs/errors.md`; a
test keeps it true.

One table says what an error means, for the running job and for `unicron explain`, which reads any training's
logs:

```sh
unicron explain slurm-4711.out
unicron explain logs/rank-0.log logs/rank-1.log logs/rank-2.log
unicron explain --json --rules site-rules.yaml run.log
unicron explain --sequence reports.json
```

| severity | what is done | |
|---|---|---|
| SEV3 | try again in place | the process is sound |
| SEV2 | a new process | its state comes from a peer |
| SEV1 | the node is out | drained, if the blame is on it and Slurm has not taken it out itself |
| PROGRAM | the run stops | no retry helps: nobody is replaced, no node is drained |
| INFO | nothing | a warning, or an end that somebody wanted |

*Collateral* are errors of ranks that only lost or waited for another: whoever names a cause is believed
first, and alone they accuse nobody. *Vague* ones say that something failed and not what; they count if
nothing better is known, and in a running job one that takes the program for guilty has to come again in a new
process before the run stops. *Exceptions only* are rows whose words are too common in other lines.

## Site rules

A site's own rules come before the table; a rule with the name of a row takes its place. Name the file in
train.yaml, `recovery.rules: site-rules.yaml`; it is checked when the job is submitted, and all agents judge
by a copy in the run folder. `unicron explain --rules site-rules.yaml` uses the same file.

```yaml rules
rules:
- name: leaf-port
  pattern: 'leaf\\d+ port \\d+ flap'
  error: link flapping
  severity: SEV3
  blame: network
  meaning: A port of a leaf switch went down and came back.
  advice: Tell the network team if it happens more than once a day.
  example: leaf12 port 7 flap
- name: xid-application
  xid: [13]
  error: worn-out GPU
  severity: SEV1
  blame: node
  meaning: On our oldest cards Xid 13 comes before a failure.
```

| key | meaning |
|---|---|
| `name` | letters, digits, `.`, `_`, `-`; of a row below to replace it |
| `pattern` | regular expression (Python's, case ignored), searched in the message (no time, rank, host) |
| `xid` | Xid numbers of the NVIDIA driver; with `pattern`, both must fit |
| `error`, `severity`, `blame`, `meaning` | needed; blame is node, process, network, program or nobody |
| `advice`, `source`, `example` | for people; the example must fit the rule |
| `collateral`, `vague`, `drain` | true or false; `drain` by itself true for SEV1 with the node to blame |
| `scope` | `any` line (the default), or `exception` |

A pattern that could hold a job up on some line is refused, since `re` tries every way to share a text out:
repeats inside repeats (`(\\w+\\s?)+`; write `(\\w++\\s?)+`), or one after the other
(`\\s*.*`, three `.*`; write `.{0,80}`).

The built-in rows have the same form and lie in `unicron_hpc/detect/rows`. The first row that fits decides.
"""

_TITLES = {
    "xid": "NVIDIA driver and NVSwitch, in the kernel log",
    "gpu": "CUDA and its libraries",
    "launch": "Containers, pods and credentials of a launch",
    "slurm": "Slurm",
    "host": "The node's kernel",
    "storage": "Shared file systems and name services",
    "servers": "Servers outside the job",
    "mpi": "MPI, PMI and their transports",
    "network": "NCCL, gloo, stores and sockets",
    "files": "Files, memory and limits of the process",
    "exits": "How processes ended",
    "program": "The program",
}


def reference() -> str:
    """The text of docs/errors.md."""
    parts = [_INTRO]
    for family, rows in families():
        parts += [f"\n## {_TITLES[family]}\n", "| row | error | severity, blame | meaning | what to do |"]
        parts += ["|---|---|---|---|---|", *map(_row, rows)]
    return "\n".join(parts) + "\n"


def _row(row: Rule) -> str:
    name = f"`{row.name}`" + (f" Xid {', '.join(map(str, row.xid))}" if row.xid else "")
    marks = ", ".join(_marks(row))
    meaning = f"{row.meaning} ({row.source})"
    cells = (
        name,
        row.error,
        f"{row.severity}, {row.blame.value}{f' ({marks})' if marks else ''}",
        meaning,
        row.advice,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _marks(row: Rule) -> Iterator[str]:
    if row.collateral:
        yield "collateral"
    if row.vague:
        yield "vague"
    if row.scope is Scope.EXCEPTION:
        yield "exceptions only"
    if row.severity == "SEV1" and not row.drains:
        yield "not drained by us"


if __name__ == "__main__":
    print(reference(), end="")

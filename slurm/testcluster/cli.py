"""The command line of the test clusters; its help texts are the manual."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from testcluster import clusters, packages, slurmconf, state
from testcluster.errors import ClusterError

_ABOUT = """\
Start a real Slurm for tests, run commands on it, and make its nodes fail.

Two drivers. `embedded` runs slurmctld and one slurmd per node side by side on this machine, from
the distribution's packages; it is up in seconds. `docker` runs each node in a container with its
own host name, address and network, and with a choice of Slurm versions (--suite bookworm: 22.05,
trixie: 24.11). Neither touches a Slurm that is installed here: keys, sockets, ports, folders and
logs are the cluster's own, and `down` removes all of them.

As root, jobs belong to a temporary account without privileges, and slurmd runs as root as on a
real node. As a plain user everything runs as that user.
"""
_EXAMPLES = """\
a first session:
  slurm/cluster packages                      what has to be installed
  slurm/cluster up --nodes 6                  nodes n1 to n6
  slurm/cluster exec -- sinfo                 a command as the plain user, on the login node
  slurm/cluster exec -- srun -N3 hostname
  slurm/cluster kill-node n2                  its slurmd and every process of its jobs are gone at once
  slurm/cluster restore-node n2               ... and back in service
  slurm/cluster exec --admin -- scontrol update NodeName=n3 State=DRAIN Reason=test
  eval "$(slurm/cluster env)"; squeue         Slurm's own commands from this shell (embedded)
  slurm/cluster down

Several clusters live together under different --name. UNICRON_CLUSTER_DIR is the default of --dir.
Exit codes: 0 done; 1 not done, the reason is on stderr; 2 wrong usage. `exec` gives its command's own.
"""


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="slurm/cluster", description=_ABOUT, epilog=_EXAMPLES, formatter_class=raw
    )
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument("--name", default="unicron", help="the cluster's name (default: unicron)")
    which.add_argument(
        "--dir",
        default=os.environ.get(state.DIR, ""),
        help="the cluster's own folder (default: one per name, in the runtime or temporary folder)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, more: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name, parents=[which], help=text, description=f"{text[0].upper()}{text[1:]}. {more}"
        )

    up = command(
        "up",
        "start a cluster and wait until all its nodes are idle",
        "A crashed `up` is cleared away first. Needs neither a terminal nor input.",
    )
    up.add_argument(
        "--nodes", type=int, default=6, help="number of compute nodes, named n1, n2, ... (default: 6)"
    )
    up.add_argument(
        "--cpus-per-node",
        type=int,
        default=8,
        help="CPUs that Slurm believes each node has; they may be more than there are (default: 8)",
    )
    up.add_argument(
        "--driver",
        choices=("embedded", "docker"),
        default="embedded",
        help="processes on this machine, or containers (default: embedded)",
    )
    up.add_argument(
        "--suite",
        choices=("bookworm", "trixie"),
        default="bookworm",
        help="Debian release in the containers: Slurm 22.05 or 24.11 (docker only)",
    )
    up.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another line for slurm.conf, over ours; may be repeated",
    )
    up.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="the most to wait for the nodes (default: 60)",
    )
    up.add_argument(
        "--reuse", action="store_true", help="be content with a cluster of this name that is running"
    )
    command(
        "down",
        "stop a cluster and remove every process, file, mount, account and container of it",
        "Also after a crash; does nothing where there is nothing.",
    )
    status = command("status", "show the daemons and what Slurm thinks of the nodes")
    status.add_argument("--json", action="store_true", help="print JSON: folder, shared, user, admin, nodes")
    command(
        "env",
        "print exports that make Slurm's own commands in this shell talk to the cluster",
        'Use: eval "$(slurm/cluster env)". Embedded only; elsewhere use exec.',
    )
    command("shared-dir", "print the folder that all nodes share and the plain user may write to")
    run = command(
        "exec",
        "run a command on the login node, or on a node, as the plain user",
        "Input, output, signals and the exit code pass through. The venv's bin folder leads PATH.",
    )
    run.add_argument("--node", default="", help="run it on this node instead")
    run.add_argument(
        "--admin", action="store_true", help="run it as the Slurm administrator, who may drain nodes"
    )
    run.add_argument(
        "argv", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command and its arguments"
    )
    for name, text, more in (
        ("kill-node", "kill every process of a node at once, as a power cut", "Slurm finds out by itself."),
        (
            "pause-node",
            "stop every process of a node: it is silent, but its processes and connections are there",
            "",
        ),
        ("resume-node", "let a paused node go on", ""),
        (
            "restore-node",
            "bring a killed, drained or paused node back into service",
            "Waits until Slurm has it.",
        ),
        ("cut-node", "take a node's network away; its processes live on", "Docker only."),
        ("heal-node", "give a cut node its network and its address back", "Docker only."),
    ):
        command(name, text, more).add_argument("nodes", nargs="+", metavar="NODE")
    loss = command(
        "link-loss",
        "let a node's network lose packets at random",
        "Docker only, needs root. Lasts until it is set to 0, or the node is restored.",
    )
    loss.add_argument("nodes", nargs="+", metavar="NODE")
    loss.add_argument("--percent", type=float, default=30.0, help="packets to lose (default: 30; 0: none)")
    log = command("log", "print a daemon's log")
    log.add_argument("daemon", help="slurmctld, munged or a node's name")
    needs = commands.add_parser(
        "packages",
        help="print the distribution's packages that are needed and missing",
        description="Print the packages that a driver needs; nothing is installed.",
    )
    needs.add_argument("--driver", choices=("embedded", "docker"), default="embedded")
    needs.add_argument(
        "--missing", action="store_true", help="print only the missing ones, one a line, for scripts"
    )
    engine = commands.add_parser(
        "docker-engine",
        help="start or stop a Docker engine of our own where none runs (needs root)",
        description="Start or stop a Docker engine of our own, apart from any other. `up` starts it when "
        "it is needed, and the last `down` stops it; images stay in the cache folder.",
    )
    engine.add_argument("action", choices=("start", "stop", "status"))
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show_status(cluster: clusters.Cluster, as_json: bool) -> None:
    told = clusters.describe(cluster)
    if as_json:
        print(json.dumps(told, indent=2))
        return
    print(
        f"{told['name']} ({told['driver']}) in {told['folder']}; user {told['user']}, admin {told['admin']}"
    )
    for name, node in told["nodes"].items():
        alive = "dead" if node["processes"] is None else f"{len(node['processes'])} processes"
        print(f"  {name:<6} {node['state'] or 'unknown':<12} {node['address']:<15} {alive}")


def _each_node(options: argparse.Namespace, folder: Path) -> None:
    with state.locked(folder):
        cluster = clusters.get(folder, _say)
        for node in options.nodes:
            match options.command:
                case "kill-node":
                    _say(f"{node}: killed, {cluster.kill_node(node)} processes")
                case "pause-node":
                    _say(f"{node}: paused, {cluster.pause_node(node)} processes")
                case "resume-node":
                    cluster.resume_node(node)
                    _say(f"{node}: resumed")
                case "restore-node":
                    cluster.restore_node(node)
                    _say(f"{node}: back in service")
                case "cut-node":
                    cluster.cut_node(node)
                    _say(f"{node}: cut off")
                case "heal-node":
                    cluster.heal_node(node)
                    _say(f"{node}: connected again")
                case "link-loss":
                    means = cluster.link_loss(node, options.percent)
                    _say(f"{node}: loses {options.percent:g} % of its packets ({means or 'nothing to do'})")


def _packages(options: argparse.Namespace) -> None:
    absent = packages.missing(options.driver)
    if options.missing:
        print(*absent, sep="\n", end="\n" if absent else "")
        return
    print("needed: ", *packages.needed(options.driver))
    print("missing:", *(absent or ["none"]))
    if absent:
        print(f"install: apt-get install --no-install-recommends {' '.join(absent)}")


def _dispatch(options: argparse.Namespace) -> int:
    if options.command == "packages":
        _packages(options)
        return 0
    if options.command == "docker-engine":
        return clusters.engine_command(options.action, _say)
    folder = (
        Path(options.dir).absolute() if options.dir else state.base_folder() / state.check_name(options.name)
    )
    match options.command:
        case "up":
            wanted = clusters.Wanted(
                name=state.check_name(options.name),
                driver=options.driver,
                nodes=options.nodes,
                cpus_per_node=options.cpus_per_node,
                suite=options.suite,
                extra=slurmconf.parse_extra(options.set),
                seconds=options.wait,
                reuse=options.reuse,
            )
            clusters.up(folder, wanted, own_place=not options.dir, say=_say)
        case "down":
            clusters.down(folder, options.name, say=_say)
        case "status":
            _show_status(clusters.get(folder, _say), options.json)
        case "env":
            for key, value in clusters.get(folder, _say).exports().items():
                print(f"export {key}={shlex.quote(value)}")
        case "shared-dir":
            print(clusters.get(folder, _say).shared)
        case "log":
            sys.stdout.write(clusters.get(folder, _say).log(options.daemon))
        case "exec":
            argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
            if not argv:
                hint = "Write it after --, as in: slurm/cluster exec -- sinfo"
                raise ClusterError("no command", where="exec", hint=hint)
            return clusters.get(folder, _say).execute(argv, node=options.node, admin=options.admin)
        case _:
            _each_node(options, folder)
    return 0


def _end(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    options = _parser().parse_args(argv)
    if options.command != "exec":
        signal.signal(signal.SIGTERM, _end)  # so that a half-done `up` clears up after itself
    try:
        return _dispatch(options)
    except ClusterError as error:
        print(f"slurm/cluster {options.command}: {error}", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"slurm/cluster {options.command}: {error}\n  Is it another user's cluster?", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(f"slurm/cluster {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        print(f"slurm/cluster {options.command}: interrupted", file=sys.stderr)
        return 128 + number

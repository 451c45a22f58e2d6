"""`unicron`: the group; each sub-command is a module of its own, imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
from collections.abc import Mapping

import click

from unicron_hpc import __version__

#: Sub-command -> what it does. The module `unicron_hpc.cli.<name>` holds a click command called `command`.
COMMANDS: Mapping[str, str] = {
    "status": "Show a job: its nodes, ranks, epoch and iteration.",
    "events": "Show what happened in a job.",
    "explain": "Say what went wrong, from any training's logs.",
    "plan": "Show the best layout for a number of nodes, and why.",
    "drill": "Make something fail on purpose, and watch the recovery.",
    "simulate": "Replay a trace of faults.",
    "report": "Show where a run's time went.",
    "doctor": "Check this machine and cluster before a job is submitted.",
    "grow": "Give a running job more nodes.",
}


class LazyGroup(click.Group):
    """A group whose sub-commands are imported on use, so that `unicron --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(f"unicron_hpc.cli.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found = importlib.import_module(f"unicron_hpc.cli.{cmd_name}").command
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, COMMANDS[name]) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="unicron")
def main() -> None:
    """Look at jobs that unicron-sbatch submitted, and plan new ones."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Ranks and users write in any language, also for a terminal that does not have their characters.
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()

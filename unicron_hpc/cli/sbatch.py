"""`unicron-sbatch`: submit a training that heals itself."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

import click

from unicron_hpc import __version__
from unicron_hpc.cli.failing import ends_with_errors
from unicron_hpc.cli.passed_on import sort_out
from unicron_hpc.config import Settings, load
from unicron_hpc.config.raw import read_text

_HELP = """Submit the training that TRAIN.YAML describes as one Slurm job that heals itself.

The job gets `slurm.nodes` nodes that train and `slurm.spares` more that wait. When a rank or a node fails,
the job replaces it, or goes on with fewer nodes, without being submitted again.

\b
Examples:
  unicron-sbatch templates/gpt-tiny.yaml                   submit it
  unicron-sbatch --dry-run train.yaml                      show the script, submit nothing
  unicron-sbatch --set train.lr=3e-4 train.yaml            change a setting
  unicron-sbatch --partition=gpu --time=2-12 train.yaml    sbatch's long options, with `=`
  unicron-sbatch --wait train.yaml                         follow it, end with its exit code
  unicron-sbatch --cluster local templates/gpt-tiny.yaml   run it here, without Slurm
  squeue --job=$(unicron-sbatch --parsable train.yaml)     use its number

\b
A small TRAIN.YAML:
  slurm: {nodes: 4, spares: 1, time: 30:00}
  model: {num_layers: 6, hidden_size: 64, num_attention_heads: 4, seq_length: 64}
  train: {micro_batch_size: 2, global_batch_size: 16, train_iters: 200, lr: 1e-3,
          pipeline_model_parallel_size: 2}
  data:  {text: corpus.txt}

docs/config.md describes every setting.

\b
Exit codes:
  0  submitted; with --wait or --cluster local: the training finished
  1  Slurm cannot be reached, or something failed
  2  the input is wrong or Slurm refused the job; nothing was submitted
  With --wait, any other code is the job's own.
"""


@click.command(
    help=_HELP,
    context_settings={
        "ignore_unknown_options": True,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)
@click.option("--dry-run", is_flag=True, help="Print the batch script and submit nothing.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Change a setting; may be repeated."
)
@click.option("--parsable", is_flag=True, help="Print the job's number only.")
@click.option("--json", "as_json", is_flag=True, help="Print job_id and run_dir as JSON.")
@click.option("--wait", is_flag=True, help="Follow the job until it ends.")
@click.option(
    "--cluster",
    type=click.Choice(["slurm", "local"]),
    default="slurm",
    show_default=True,
    help="Where to run: as a Slurm job, or as processes on this machine.",
)
@click.version_option(__version__, prog_name="unicron-sbatch")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SBATCH OPTIONS] TRAIN.YAML")
@ends_with_errors
def main(
    *,
    dry_run: bool,
    overrides: tuple[str, ...],
    parsable: bool,
    as_json: bool,
    wait: bool,
    cluster: str,
    words: tuple[str, ...],
) -> None:
    arguments = sort_out(words)
    settings = load(arguments.file, (*overrides, *arguments.overrides))
    rules = _rules(settings)
    # Imported late, so that a mistake in the file is reported without the rest being loaded.
    from unicron_hpc.cli.choosing import chosen

    settings = chosen(settings)
    if cluster == "local" and not dry_run:
        sys.exit(_run_here(settings, arguments.file, rules, as_json=as_json, parsable=parsable))

    from unicron_hpc.slurm import script, submit

    text = read_text(Path(arguments.file))
    request = submit.Request(settings, arguments.file, text, arguments.passed_on, rules)
    if dry_run:
        staged = settings.run_dir / f".staged-{settings.name}.XXXXXXXXXXXX"
        text = script.render(settings, staged, source=arguments.file)
        click.echo(
            json.dumps({"script": text, "run_dir": str(settings.run_dir)}) if as_json else text, nl=as_json
        )
        return
    job = submit.submit(request, os.environ)
    for warning in job.warnings:
        click.echo(warning, err=True)
    _tell(job.job_id, job.run_folder, as_json=as_json, parsable=parsable)
    if not (as_json or parsable):
        click.echo(f"Output:     {job.output}")
    if wait:
        from unicron_hpc.cli.waiting import follow

        sys.exit(follow(job.job_id, job.run_folder, lambda line: click.echo(line, err=True)))


def _rules(settings: Settings) -> str:
    """The site's rules for errors, checked; empty without any."""
    if settings.recovery.rules is None:
        return ""
    from unicron_hpc.detect.site_rules import rules_text

    return rules_text(settings.recovery.rules)


def _run_here(settings: Settings, source: str, rules: str, *, as_json: bool, parsable: bool) -> int:
    """Run on this machine, in a run folder of the same shape."""
    from unicron_hpc.slurm import run_folder, submit

    # By name: the supervisor needs torch, which a login node may lack.
    local = importlib.import_module("unicron_hpc.supervisor.local")

    staged = submit.stage(submit.Request(settings, source, read_text(Path(source)), rules=rules))
    job_id = f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = run_folder.claim_run_folder(staged, job_id)
    _tell(job_id, folder, as_json=as_json, parsable=parsable)
    return int(local.run(settings, folder))


def _tell(job_id: str, folder: Path, *, as_json: bool, parsable: bool) -> None:
    if as_json:
        click.echo(json.dumps({"job_id": job_id, "run_dir": str(folder)}))
    elif parsable:
        click.echo(job_id)
    else:
        click.echo(f"Submitted batch job {job_id}" if job_id.isdecimal() else f"Running as {job_id}")
        click.echo(f"Run folder: {folder}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

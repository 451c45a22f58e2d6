"""What README and docs tell people to type works as it stands there.

Blocks marked `sh run` are run; of the commands in `sh` blocks the options are checked by the commands' own
parsers; `yaml` blocks are loaded as settings; links lead to files.
"""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.docs.pages import REPOSITORY, Block, blocks, links
from unicron_hpc.cli import main, sbatch
from unicron_hpc.config import load

#: Our programs as functions: that they are installed under these names is for tests/test_packaging.py.
OURS = {"unicron-sbatch": sbatch.main, "unicron": main.main}
#: Programs that are not ours; a page may name them, the tests take them as they are.
FOREIGN = {"python3.11", ".venv/bin/pip"}
#: Words for the parts of `.ci/run`.
PARTS = {"lint", "unit", "cluster", "docker"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: one with the templates, as the clone has them; files may be made in it."""
    shutil.copytree(REPOSITORY / "templates", tmp_path / "templates")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str]) -> Result:
    """Run one of our commands."""
    return CliRunner().invoke(OURS[words[0]], words[1:], prog_name=words[0])


def check(words: list[str]) -> None:
    """Fail where one of our programs would not understand these words."""
    program, arguments = words[0].removeprefix("./").removeprefix(".venv/bin/"), words[1:]
    match program:
        case "slurm/quickstart":
            importlib.import_module("quickstart_steps.cli")._parser().parse_args(arguments)
        case "slurm/cluster":
            parsed = importlib.import_module("testcluster.cli")._parser().parse_args(arguments)
            if parsed.command == "exec":
                check(parsed.argv[1:])
        case ".ci/run":
            assert set(arguments) <= PARTS
        case "unicron-sbatch":
            done = run([program, "--dry-run", *arguments])
            assert done.exit_code == 0, done.output
        case "unicron":
            command = importlib.import_module(f"unicron_hpc.cli.{arguments[0]}").command
            assert isinstance(command, click.Command)
            if isinstance(command, click.Group):
                inner = command.get_command(click.Context(command), arguments[1])
                assert inner is not None, f"{arguments[0]} has no sub-command {arguments[1]}"
                command, arguments = inner, arguments[1:]
            command.make_context(arguments[0], arguments[1:])
        case "squeue":
            assert arguments == []
        case _:
            assert words[0] in FOREIGN, f"{words[0]} is neither ours nor known here"


@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.id)
@pytest.mark.usefixtures("place")
def test_commands_have_the_options_that_pages_name(block: Block) -> None:
    for words in block.commands():
        try:
            check(words)
        except (SystemExit, click.ClickException, ImportError) as error:
            pytest.fail(f"{block.id}: {' '.join(words)}: {error}", pytrace=False)


@pytest.mark.parametrize("block", blocks("sh run"), ids=lambda block: block.id)
@pytest.mark.usefixtures("place")
def test_runnable_blocks_run(block: Block) -> None:
    for words in block.commands():
        done = run(words)
        assert (done.exit_code, done.stderr) == (0, ""), words
        assert done.stdout


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.id)
def test_yaml_is_a_training_that_can_be_submitted(block: Block, place: Path) -> None:
    file = place / "templates" / "page.yaml"
    file.write_text(block.text)
    assert load(str(file)).train.train_iters > 0


def test_pages_have_blocks_of_every_kind() -> None:
    assert all(blocks(info) for info in ("sh", "sh run", "yaml"))


def test_links_lead_to_files() -> None:
    assert links()
    assert [(page.name, link) for page, link in links() if not (page.parent / link).exists()] == []


def test_readme_begins_with_the_two_commands() -> None:
    first = next(block for block in blocks("sh") if block.page == "README.md")
    assert list(first.commands()) == [["./slurm/quickstart"], ["./.ci/run"]]
    for command in (REPOSITORY / "slurm" / "quickstart", REPOSITORY / ".ci" / "run"):
        assert os.access(command, os.X_OK)

"""`--cluster local`: the same job as plain processes of this machine, healing the same way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.run import Run, processes_with, settings_text, worst_difference

pytestmark = pytest.mark.local

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = [sys.executable, "-m", "unicron_hpc.cli.sbatch", "--cluster", "local", "--json"]
ITERATIONS = 60


@contextlib.contextmanager
def running(folder: Path, name: str, nodes: int, spares: int) -> Iterator[tuple[subprocess.Popen[str], Run]]:
    """Start a training and see to it that nothing of it lives on, whatever happens."""
    shutil.copy(ROOT / "templates" / "data" / "tiny.txt", folder / "tiny.txt")
    train = {"pipeline_model_parallel_size": 1, "train_iters": ITERATIONS}
    text = settings_text(name=name, slurm={"nodes": nodes, "spares": spares}, train=train)
    (folder / f"{name}.yaml").write_text(text)
    mark = f"UNICRON_TEST_RUN={folder}/{name}"
    key, _, value = mark.partition("=")
    process = subprocess.Popen(
        [*SUBMIT, f"{name}.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), key: value},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield process, Run(Path(told["run_dir"]))
        assert processes_with(mark) == {}
    finally:
        process.kill()
        process.wait()
        for pid in processes_with(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of a run without faults, of the same layout."""
    with running(tmp_path_factory.mktemp("plain"), "plain", 2, 0) as (process, run):
        assert process.wait(timeout=180) == 0, run.story()
        return run.losses()


def test_a_killed_rank_and_a_lost_node_change_nothing_but_the_time(
    tmp_path: Path, losses: dict[int, float]
) -> None:
    with running(tmp_path, "healing", 2, 1) as (process, run):
        run.wait_iteration(10)
        victim = run.ranks()[1]
        os.kill(victim["pid"], signal.SIGKILL)
        run.wait_recovered(count=1)
        assert {r["rank"] for r in run.ranks() if r["pid"] != victim["pid"]} == {0, 1}

        run.wait_iteration(30)
        agent = run.events("agent_joined", node=victim["node"])[0]["pid"]
        for pid in [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == agent:  # an agent leads the session of all its node's processes
                    os.kill(pid, signal.SIGKILL)
        run.wait_recovered(count=2)
        assert process.wait(timeout=180) == 0, run.story()

        rank_killed, node_lost = run.events("transition_finished")[1:]
        for finished in (rank_killed, node_lost):
            assert finished["state_sources"]["peer"] > 0
            assert finished["state_sources"]["disk"] == 0
        assert [event["node"] for event in run.events("agent_lost")] == [victim["node"]]
        assert "n3" in {rank["node"] for rank in node_lost["ranks"]}
        assert run.losses().keys() == losses.keys()
        assert worst_difference(run.losses(), losses) <= 1e-5

"""README's first command, run as it stands: set up already, so it goes straight to the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from testcluster import packages, state
from testcluster.api import Cluster

from .pages import REPOSITORY

pytestmark = pytest.mark.cluster


@pytest.fixture
def name() -> Iterator[str]:
    """A name of its own for the cluster, which is gone afterwards in any case."""
    if absent := packages.missing("embedded"):
        pytest.skip(f"packages are missing: {' '.join(absent)}")
    with Cluster(f"q{os.getpid()}") as cluster:
        yield cluster.name


def quickstart(name: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(REPOSITORY / "slurm" / "quickstart"), "--name", name, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def is_gone(name: str) -> bool:
    return not (state.base_folder() / name).exists()


def test_it_loses_two_nodes_tells_what_happened_and_leaves_nothing(name: str) -> None:
    with quickstart(name, "--lose", "2", "--iterations", "60") as process:
        try:
            output, _ = process.communicate(timeout=300)
        finally:
            process.terminate()
    assert process.returncode == 0, output
    assert "Spare n5 took its seat." in output
    assert "No spare was left, so the layers were dealt anew" in output
    assert output.count(" 0 bytes were read from disk.") == 2
    assert output.count("from the kill to the next committed iteration") == 2
    assert "Iterations 1 to 60, each committed once" in output
    assert "COMPLETED, exit code 0:0" in output
    assert is_gone(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_its_cluster_down(name: str, number: signal.Signals) -> None:
    with quickstart(name) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if line.startswith("$ unicron-sbatch"):
                process.send_signal(number)
                break
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, "".join(seen) + output
    assert is_gone(name)

"""Real Slurm clusters for the tests of this folder, one of each kind per session.

`embedded` and `docker` are the clusters; after each test that used one, its jobs are cancelled and its nodes
brought back. UNICRON_DOCKER_SUITE chooses the Debian release in the containers: `bookworm` (Slurm 22.05) or
`trixie` (24.11, the default).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "slurm"))

from testcluster import engine, packages
from testcluster.api import Cluster

from tests.cluster.job import forget_bad_nodes

#: Containers that tests need: enough for two active nodes, a spare, and one more to lose.
DOCKER_NODES = 4
EMBEDDED_NODES = 6


def why_not(driver: str) -> str:
    """Return in one sentence why clusters of this driver cannot be started here, or ''."""
    absent = packages.missing("embedded") if driver == "embedded" else []
    if absent:
        return f"packages are missing: {' '.join(absent)}"
    return engine.why_not() if driver == "docker" else ""


def require_driver(driver: str) -> None:
    """Skip the test, or fail it in CI, where clusters of this driver cannot be started."""
    reason = why_not(driver)
    if reason and driver == "embedded" and os.environ.get("CI"):
        pytest.fail(f"no {driver} cluster: {reason}", pytrace=False)
    if reason:
        pytest.skip(f"no {driver} cluster: {reason}")


@pytest.fixture(scope="session")
def embedded() -> Iterator[Cluster]:
    """A real slurmctld and six slurmds on this machine."""
    require_driver("embedded")
    with Cluster(f"t{os.getpid()}") as cluster:
        yield cluster.up(nodes=EMBEDDED_NODES)


@pytest.fixture(scope="session")
def docker() -> Iterator[Cluster]:
    """A Slurm with a container per node."""
    require_driver("docker")
    with Cluster(f"d{os.getpid()}") as cluster:
        suite = os.environ.get("UNICRON_DOCKER_SUITE", "trixie")
        yield cluster.up(nodes=DOCKER_NODES, driver="docker", suite=suite)


@pytest.fixture(autouse=True)
def _as_new_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let no test see the jobs or the dead nodes of another."""
    used = [name for name in ("embedded", "docker") if name in request.fixturenames]
    clusters: list[Cluster] = [request.getfixturevalue(name) for name in used]
    yield
    for cluster in clusters:
        cluster.reset()
        forget_bad_nodes(cluster)

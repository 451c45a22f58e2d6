"""Clusters by folder, whatever their driver: bring one up, find it again, take it down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from testcluster import cleanup, health, procs, state
from testcluster.embedded import EmbeddedCluster
from testcluster.errors import ClusterError

Say = Callable[[str], None]


class Cluster(Protocol):
    """What every driver can do with its cluster."""

    folder: Path
    known: state.State

    @property
    def shared(self) -> Path: ...
    def up(self, *, extra: dict[str, str], seconds: float) -> None: ...
    def down(self) -> None: ...
    def is_running(self) -> bool: ...
    def kill_node(self, node: str) -> int: ...
    def pause_node(self, node: str) -> int: ...
    def resume_node(self, node: str) -> None: ...
    def restore_node(self, node: str) -> None: ...
    def cut_node(self, node: str) -> None: ...
    def heal_node(self, node: str) -> None: ...
    def link_loss(self, node: str, percent: float) -> str: ...
    def exports(self) -> dict[str, str]: ...
    def node_processes(self, node: str) -> dict[int, str] | None: ...
    def address(self, node: str) -> str: ...
    def log(self, daemon: str) -> str: ...
    def run(self, command: Sequence[str]) -> health.Answer: ...
    def execute(self, command: Sequence[str], *, node: str, admin: bool) -> int: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `up` was asked for."""

    name: str
    driver: str
    nodes: int
    cpus_per_node: int
    suite: str
    extra: dict[str, str]
    seconds: float
    reuse: bool


def _driver(folder: Path, known: state.State, say: Say) -> Cluster:
    if known.driver == "docker":
        from testcluster.docker import DockerCluster

        return DockerCluster(folder, known, say)
    return EmbeddedCluster(folder, known, say)


def get(folder: Path, say: Say) -> Cluster:
    """Return the cluster in `folder`, which must be up."""
    known = state.read(folder)
    if known is None or not known.up_finished:
        raise ClusterError(
            "no cluster is up there", where=str(folder), hint="Start one: slurm/cluster up --nodes 6"
        )
    return _driver(folder, known, say)


def up(folder: Path, wanted: Wanted, *, own_place: bool, say: Say) -> None:
    """Start a cluster in `folder`.

    Parameters
    ----------
    folder
        The cluster's folder; created where it is missing.
    wanted
        What to start.
    own_place
        Whether the folder is the default one, which may be cleared whatever is in it.
    say
        Receives progress, a line at a time.
    """
    if not 1 <= wanted.nodes <= 64:
        raise ClusterError("must lie between 1 and 64", where=f"--nodes {wanted.nodes}")
    if wanted.cpus_per_node < 1:
        raise ClusterError("must be at least 1", where=f"--cpus-per-node {wanted.cpus_per_node}")
    os.umask(0o022)
    if own_place:
        state.make_base_folder()
    existed = folder.exists()
    folder.mkdir(parents=not own_place, exist_ok=True)
    with state.locked(folder):
        known = state.read(folder)
        if known is not None and _is_up(folder, known, wanted, say):
            return
        if known is None and any(folder.iterdir()) and not own_place:
            raise ClusterError(
                "is not empty and holds no cluster", where=str(folder), hint="Give another --dir."
            )
        own_folder = known.own_folder if known else own_place or not existed
        if known is not None or any(folder.iterdir()):
            say("clearing away what an earlier cluster left")
            cleanup.clear(folder, known, wanted.name, say)
        fresh = state.State(
            name=wanted.name,
            driver=wanted.driver,
            nodes=[f"n{number + 1}" for number in range(wanted.nodes)],
            cpus_per_node=wanted.cpus_per_node,
            suite=wanted.suite,
            own_folder=own_folder,
        )
        state.write(folder, fresh)
        cluster = _driver(folder, fresh, say)
        try:
            cluster.up(extra=wanted.extra, seconds=wanted.seconds)
        except BaseException:
            cleanup.clear(folder, fresh, wanted.name, say)
            cleanup.remove(folder, own_folder)
            raise
    say(
        f"cluster {wanted.name} is up: {wanted.nodes} nodes, user {fresh.user}, "
        f"shared folder {cluster.shared}"
    )


def _is_up(folder: Path, known: state.State, wanted: Wanted, say: Say) -> bool:
    """Tell whether what runs in `folder` is what is wanted; raise where it is something else."""
    if not known.up_finished or not _driver(folder, known, say).is_running():
        return False
    name = f"cluster {known.name}"
    if not wanted.reuse:
        hint = "Take it down first, use it with --reuse, or give another --name."
        raise ClusterError("is up already", where=name, hint=hint)
    have = (known.driver, len(known.nodes), known.suite if known.driver == "docker" else "")
    want = (wanted.driver, wanted.nodes, wanted.suite if wanted.driver == "docker" else "")
    if have != want:
        hint = "Take it down first, or give another --name."
        raise ClusterError(
            f"is up with {have[1]} nodes by {' '.join(part for part in have[::2] if part)}, not as asked for",
            where=name,
            hint=hint,
        )
    say(f"{name} is up already")
    return True


def down(folder: Path, name: str, *, say: Say) -> None:
    """Take down whatever of a cluster there is."""
    if not folder.exists():
        # Its folder may have been deleted under it: the rest still tells where it belongs.
        procs.kill(lambda: procs.marked(state.MARK, str(folder)))
        cleanup.remove_accounts(name)
        cleanup.remove_containers(folder, say)
        say(f"no cluster in {folder}")
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(state.locked(folder))
        try:
            known = state.read(folder)
        except ClusterError as error:
            say(f"{error.where}: {error.message}; taking down what can be found")
            known = None
        if known is None and folder.parent != state.base_folder() and any(folder.iterdir()):
            raise ClusterError("holds no cluster", where=str(folder))
        cleanup.clear(folder, known, known.name if known else name, say)
        cleanup.remove(folder, known.own_folder if known else folder.parent == state.base_folder())
    say(f"cluster {known.name if known else name} is down")


def describe(cluster: Cluster) -> dict[str, Any]:
    """Return all there is to know about a cluster, in plain types."""
    states = health.node_states(cluster.run)
    return {
        "name": cluster.known.name,
        "driver": cluster.known.driver,
        "suite": cluster.known.suite,
        "folder": str(cluster.folder),
        "shared": str(cluster.shared),
        "user": cluster.known.user,
        "admin": cluster.known.admin,
        "nodes": {
            node: {
                "state": states.get(node, ""),
                "address": cluster.address(node),
                "processes": cluster.node_processes(node),
            }
            for node in cluster.known.nodes
        },
    }


def engine_command(action: str, say: Say) -> int:
    """Start, stop or look at the Docker engine of our own."""
    from testcluster import engine

    if action == "start":
        say(f"engine at {engine.ensure(say, None).host or 'its usual place'}")
    elif action == "stop":
        engine.stop(say)
    else:
        say(engine.describe())
    return 0

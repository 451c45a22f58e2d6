"""Taking a cluster away to the last trace, also one that crashed half way up."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from testcluster import accounts, image, keeper, packages, procs, state


def account_names(cluster: str) -> tuple[str, str]:
    """Return the names of the plain account and of the administrator of a cluster that root starts."""
    return f"uc-{cluster}", f"uc-{cluster}-adm"


def remove_accounts(cluster: str) -> None:
    """Kill what the cluster's temporary accounts still run, then delete them, if this is root."""
    if os.geteuid() != 0:
        return
    for name in account_names(cluster):
        account = accounts.find(name)
        if account is not None and accounts.is_ours(name, cluster):
            procs.kill(lambda uid=account.uid: procs.owned_by({uid}))  # type: ignore[misc]
            accounts.delete(name, cluster)


def remove_containers(folder: Path, say: Callable[[str], None]) -> None:
    """Remove the containers of a cluster whose state is lost; their labels still tell whose they are."""
    from testcluster import engine

    found = engine.find() if packages.program("docker") else None
    if found is not None:
        engine.remove_leftovers(found, folder)
        engine.release(folder, say)


def clear(folder: Path, known: state.State | None, name: str, say: Callable[[str], None]) -> None:
    """Kill the cluster's every process, remove its containers and accounts, and empty its folder."""
    if known is not None and known.driver == "docker":
        from testcluster.docker import DockerCluster

        DockerCluster(folder, known, say).down()
    elif known is None:
        remove_containers(folder, say)
    for path in sorted((folder / "run").glob("*.keeper")):
        if (found := keeper.read(folder, path.stem)) is not None:
            found.kill()
    procs.kill(lambda: procs.marked(state.MARK, str(folder)))
    image.clear_work(folder)
    remove_accounts(name)
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def remove(folder: Path, own_folder: bool) -> None:
    """Remove the emptied folder where the cluster made it, and the base folder after the last one."""
    if own_folder:
        folder.rmdir()
        if folder.parent == state.base_folder():
            with contextlib.suppress(OSError):  # another cluster lives in it
                folder.parent.rmdir()
